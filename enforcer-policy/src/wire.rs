//! Values as bytes, compact and exact: what the flight recorder keeps of the engine.
//!
//! Integers are LEB128, signed ones zigzagged before; a float is its bits. Nothing is allocated by encoding. A type's
//! form is declared by [`wire!`] beside it; a field that is forgotten there does not compile. [`Wire::shape`] says the
//! form in words, so that bytes of another form are known as such and not misread.

#[cfg(test)]
mod tests;

use super::few::Few;
use crate::model::CgroupId;

/// Where bytes go.
pub trait Sink {
    /// Takes these bytes behind the others.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A buffer with an end; what does not fit is noticed, and nothing is allocated.
#[derive(Debug)]
pub struct Bounded<'a> {
    buffer: &'a mut [u8],
    length: usize,
    fits: bool,
}

impl<'a> Bounded<'a> {
    /// Writes from the beginning of that buffer on.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0, fits: true }
    }

    /// How many bytes were written; none if there was no room for all.
    #[must_use]
    pub fn length(&self) -> Option<usize> {
        self.fits.then_some(self.length)
    }
}

impl Sink for Bounded<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        match self.buffer.get_mut(self.length..end) {
            Some(room) if self.fits => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            Some(_) | None => self.fits = false,
        }
    }
}

/// Bytes that are no value of the type that was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("byte {at}: {what}")]
pub struct Malformed {
    /// The place, counted from where the reading began.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Where bytes come from.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Source<'a> {
    /// Reads from the beginning on.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Whether everything was taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left() == 0
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Takes so many bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or(self.wrong("it ends too early"))?;
        self.at = end;
        Ok(taken)
    }

    /// Says that something is wrong here.
    #[must_use]
    pub fn wrong(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let wrong = self.wrong("it ends too early");
        self.bytes(N)?.first_chunk::<N>().copied().ok_or(wrong)
    }

    /// How many values follow, each of at least one byte: no more than there are bytes.
    fn count(&mut self) -> Result<usize, Malformed> {
        let wrong = self.wrong("more values than bytes");
        let count = usize::take(self)?;
        if count <= self.left() { Ok(count) } else { Err(wrong) }
    }
}

/// A value that can be kept.
pub trait Wire: Sized {
    /// Appends it.
    fn put(&self, sink: &mut impl Sink);

    /// Takes one.
    fn take(source: &mut Source<'_>) -> Result<Self, Malformed>;

    /// Says its form.
    fn shape(out: &mut String);
}

/// Says the form of what a function gives: the macro's way to a field's type.
pub(crate) fn shape_of<S, T: Wire>(_: fn(&S) -> &T, out: &mut String) {
    T::shape(out);
}

/// Declares a type's form: `wire!(struct Name { field, … })`, or `wire!(enum Name { 0 => Unit, 1 => One(value: Type),
/// 2 => Fields { field: Type } })`. A variant keeps its number; a new variant gets a new one. A type or a field that was
/// renamed keeps its name in recordings: `wire!(struct Name as "OldName" { field as "old_field" })`.
macro_rules! wire {
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $recorded:literal) => { $recorded };
    (struct $name:ident $(as $recorded:literal)? { $($field:ident $(as $field_recorded:literal)?),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, sink: &mut impl $crate::wire::Sink) {
                let Self { $($field),* } = self;
                $($crate::wire::Wire::put($field, sink);)*
            }

            fn take(
                source: &mut $crate::wire::Source<'_>,
            ) -> Result<Self, $crate::wire::Malformed> {
                Ok(Self { $($field: $crate::wire::Wire::take(source)?),* })
            }

            fn shape(out: &mut String) {
                out.push_str($crate::wire::wire!(@name $name $($recorded)?));
                out.push('{');
                $(
                    out.push_str($crate::wire::wire!(@name $field $($field_recorded)?));
                    out.push(':');
                    $crate::wire::shape_of(|value: &Self| &value.$field, out);
                    out.push(',');
                )*
                out.push('}');
            }
        }
    };
    (enum $name:ident $(as $recorded:literal)? {
        $($tag:literal => $variant:ident
            $({ $($field:ident: $of:ty),* $(,)? })?
            $(( $($item:ident: $kind:ty),* $(,)? ))?
        ),* $(,)?
    }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, sink: &mut impl $crate::wire::Sink) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($item),* ))? => {
                        sink.put(&[$tag]);
                        $($(<$of as $crate::wire::Wire>::put($field, sink);)*)?
                        $($(<$kind as $crate::wire::Wire>::put($item, sink);)*)?
                    })*
                }
            }

            fn take(
                source: &mut $crate::wire::Source<'_>,
            ) -> Result<Self, $crate::wire::Malformed> {
                let wrong = source.wrong(concat!("no kind of ", stringify!($name)));
                match source.bytes(1)? {
                    $([$tag] => {
                        $($(let $field = <$of as $crate::wire::Wire>::take(source)?;)*)?
                        $($(let $item = <$kind as $crate::wire::Wire>::take(source)?;)*)?
                        Ok(Self::$variant $({ $($field),* })? $(( $($item),* ))?)
                    })*
                    _ => Err(wrong),
                }
            }

            fn shape(out: &mut String) {
                out.push_str($crate::wire::wire!(@name $name $($recorded)?));
                out.push('<');
                $(
                    out.push_str(concat!(stringify!($tag), "=", stringify!($variant), "("));
                    $($(
                        out.push_str(concat!(stringify!($field), ":"));
                        <$of as $crate::wire::Wire>::shape(out);
                        out.push(',');
                    )*)?
                    $($(<$kind as $crate::wire::Wire>::shape(out); out.push(',');)*)?
                    out.push(')');
                )*
                out.push('>');
            }
        }
    };
}
pub(crate) use wire;

/// The most bytes of a LEB128 number of 64 bits.
const MOST_DIGITS: usize = 10;

impl Wire for u64 {
    fn put(&self, sink: &mut impl Sink) {
        let (mut digits, mut count, mut rest) = ([0_u8; MOST_DIGITS], 0, *self);
        for digit in &mut digits {
            let [low, ..] = rest.to_le_bytes();
            rest >>= 7;
            count += 1;
            *digit = if rest == 0 { low & 0x7f } else { low | 0x80 };
            if rest == 0 {
                break;
            }
        }
        sink.put(digits.get(..count).unwrap_or_default());
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        let wrong = source.wrong("no number of 64 bits");
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            let [digit] = source.array::<1>()?;
            let part = Self::from(digit & 0x7f);
            let shifted = part.checked_shl(shift).filter(|shifted| shifted >> shift == part).ok_or(wrong)?;
            value |= shifted;
            if digit & 0x80 == 0 {
                // One number, one form: what is decoded is what was encoded.
                return if digit == 0 && shift > 0 { Err(wrong) } else { Ok(value) };
            }
            shift += 7;
        }
    }

    fn shape(out: &mut String) {
        out.push_str("u64");
    }
}

macro_rules! narrower {
    ($($type:ident as $wide:ident),*) => {$(
        impl Wire for $type {
            fn put(&self, sink: &mut impl Sink) {
                // Never wider than 64 bits: nothing is cut.
                $wide::try_from(*self).unwrap_or_default().put(sink);
            }

            fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
                let wrong = source.wrong(concat!("out of the range of ", stringify!($type)));
                Self::try_from($wide::take(source)?).ok().ok_or(wrong)
            }

            fn shape(out: &mut String) {
                out.push_str(stringify!($type));
            }
        }
    )*};
}
narrower!(u16 as u64, u32 as u64, usize as u64, i32 as i64);

impl Wire for i64 {
    fn put(&self, sink: &mut impl Sink) {
        let zigzag = ((*self << 1) ^ (*self >> 63)).cast_unsigned();
        zigzag.put(sink);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        let zigzag = u64::take(source)?;
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    fn shape(out: &mut String) {
        out.push_str("i64");
    }
}

impl Wire for u128 {
    fn put(&self, sink: &mut impl Sink) {
        sink.put(&self.to_le_bytes());
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        source.array().map(Self::from_le_bytes)
    }

    fn shape(out: &mut String) {
        out.push_str("u128");
    }
}

impl Wire for f32 {
    fn put(&self, sink: &mut impl Sink) {
        sink.put(&self.to_bits().to_le_bytes());
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        source.array().map(u32::from_le_bytes).map(Self::from_bits)
    }

    fn shape(out: &mut String) {
        out.push_str("f32");
    }
}

impl Wire for bool {
    fn put(&self, sink: &mut impl Sink) {
        sink.put(&[u8::from(*self)]);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        let wrong = source.wrong("neither yes nor no");
        match source.bytes(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(wrong),
        }
    }

    fn shape(out: &mut String) {
        out.push_str("bool");
    }
}

impl Wire for CgroupId {
    fn put(&self, sink: &mut impl Sink) {
        self.0.put(sink);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        u64::take(source).map(Self)
    }

    fn shape(out: &mut String) {
        out.push_str("cgroup");
    }
}

impl Wire for String {
    fn put(&self, sink: &mut impl Sink) {
        self.len().put(sink);
        sink.put(self.as_bytes());
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        let count = source.count()?;
        let wrong = source.wrong("no UTF-8");
        let text = std::str::from_utf8(source.bytes(count)?).ok();
        text.map(str::to_owned).ok_or(wrong)
    }

    fn shape(out: &mut String) {
        out.push_str("text");
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, sink: &mut impl Sink) {
        self.is_some().put(sink);
        if let Some(value) = self {
            value.put(sink);
        }
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        bool::take(source)?.then(|| T::take(source)).transpose()
    }

    fn shape(out: &mut String) {
        T::shape(out);
        out.push('?');
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, sink: &mut impl Sink) {
        self.0.put(sink);
        self.1.put(sink);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        Ok((A::take(source)?, B::take(source)?))
    }

    fn shape(out: &mut String) {
        A::shape(out);
        out.push('+');
        B::shape(out);
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, sink: &mut impl Sink) {
        put_slice(self, sink);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        let count = source.count()?;
        (0..count).map(|_| T::take(source)).collect()
    }

    fn shape(out: &mut String) {
        out.push('[');
        T::shape(out);
        out.push(']');
    }
}

/// Puts values as a vector of them would be.
pub fn put_slice<T: Wire>(values: &[T], sink: &mut impl Sink) {
    values.len().put(sink);
    for value in values {
        value.put(sink);
    }
}

impl<T: Wire, const N: usize> Wire for [T; N]
where
    [T; N]: Default,
{
    fn put(&self, sink: &mut impl Sink) {
        for value in self {
            value.put(sink);
        }
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        let mut values = Self::default();
        for value in &mut values {
            *value = T::take(source)?;
        }
        Ok(values)
    }

    fn shape(out: &mut String) {
        T::shape(out);
        out.push_str(&format!("*{N}"));
    }
}

impl<T: Wire + Copy, const N: usize> Wire for Few<T, N> {
    fn put(&self, sink: &mut impl Sink) {
        self.len().put(sink);
        for value in self.iter() {
            value.put(sink);
        }
    }

    fn take(source: &mut Source<'_>) -> Result<Self, Malformed> {
        let wrong = source.wrong("more values than there is room for");
        let mut few = Self::new();
        for _ in 0..source.count()? {
            if !few.push(T::take(source)?) {
                return Err(wrong);
            }
        }
        Ok(few)
    }

    fn shape(out: &mut String) {
        T::shape(out);
        out.push_str(&format!("<={N}"));
    }
}
