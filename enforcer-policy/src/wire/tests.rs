use proptest::prelude::*;

use super::*;

fn round<T: Wire + PartialEq + std::fmt::Debug>(value: &T) {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    let mut source = Source::new(&bytes);
    assert_eq!(T::take(&mut source).as_ref(), Ok(value));
    assert!(source.is_empty(), "{value:?}: {bytes:x?}");
    for end in 0..bytes.len() {
        assert!(T::take(&mut Source::new(&bytes[..end])).is_err(), "{value:?} cut at {end}");
    }
    let mut room = vec![0; bytes.len()];
    let mut bounded = Bounded::new(&mut room);
    value.put(&mut bounded);
    assert_eq!(bounded.length(), Some(bytes.len()));
    assert_eq!(room, bytes);
    if let Some(less) = bytes.len().checked_sub(1) {
        let mut bounded = Bounded::new(&mut room[..less]);
        value.put(&mut bounded);
        assert_eq!(bounded.length(), None);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Unit,
    One(u64),
    Fields { first: i64, second: Option<bool> },
}
wire!(enum Kind { 0 => Unit, 1 => One(value: u64), 7 => Fields { first: i64, second: Option<bool> } });

#[derive(Debug, PartialEq)]
struct Thing {
    kind: Kind,
    names: Vec<String>,
    few: Few<u16, 3>,
    share: f32,
    all: [(u32, i32); 2],
}
wire!(struct Thing { kind, names, few, share, all });

#[test]
fn what_is_taken_is_what_was_put() {
    for value in [0, 1, 127, 128, u64::MAX - 1, u64::MAX] {
        round(&value);
        round(&value.cast_signed());
        round(&Kind::One(value));
    }
    round(&u128::MAX);
    round(&i64::MIN);
    round(&i32::MIN);
    round(&Kind::Unit);
    round(&Kind::Fields { first: -1, second: Some(true) });
    let mut few = Few::new();
    assert!(few.push(1) && few.push(u16::MAX));
    let names = vec![String::new(), String::from("ä\u{0}")];
    round(&Thing { kind: Kind::Unit, names, few, share: f32::MIN_POSITIVE, all: [(1, -1), (u32::MAX, 0)] });
}

#[test]
fn a_float_keeps_its_bits() {
    let mut bytes = Vec::new();
    let odd = f32::from_bits(0x7fc0_1234);
    odd.put(&mut bytes);
    assert_eq!(f32::take(&mut Source::new(&bytes)).map(f32::to_bits), Ok(0x7fc0_1234));
}

#[test]
fn what_is_no_value_is_reported() {
    let take = |bytes: &[u8]| Kind::take(&mut Source::new(bytes)).map_err(|malformed| malformed.what);
    assert_eq!(take(&[2]), Err("no kind of Kind"));
    assert_eq!(take(&[7, 0, 2]), Err("neither yes nor no"));
    assert_eq!(take(&[1, 0x80, 0]), Err("no number of 64 bits"));
    assert_eq!(take(&[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]), Err("no number of 64 bits"));
    assert_eq!(take(&[]), Err("it ends too early"));
    let wrong = |bytes: &[u8]| Vec::<u16>::take(&mut Source::new(bytes)).map_err(|malformed| malformed.what);
    assert_eq!(wrong(&[255, 255, 3, 1]), Err("more values than bytes"));
    assert_eq!(wrong(&[1, 255, 255, 4]), Err("out of the range of u16"));
    let few = Few::<u64, 2>::take(&mut Source::new(&[3, 1, 2, 3]));
    assert_eq!(few.map_err(|malformed| malformed.what), Err("more values than there is room for"));
}

#[test]
fn the_shape_names_every_field_and_type() {
    let mut shape = String::new();
    Thing::shape(&mut shape);
    assert_eq!(
        shape,
        "Thing{kind:Kind<0=Unit()1=One(u64,)7=Fields(first:i64,second:bool?,)>,names:[text],few:u16<=3,share:f32,\
         all:u32+i32*2,}"
    );
}

proptest! {
    #[test]
    fn numbers_survive(value: u64, signed: i64, small: u32) {
        round(&value);
        round(&signed);
        round(&small);
        round(&vec![Some(value), None, Some(u64::from(small))]);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes: Vec<u8>) {
        let mut source = Source::new(&bytes);
        if let Ok(thing) = Thing::take(&mut source) {
            let used = bytes.len() - source.left();
            let mut again = Vec::new();
            thing.put(&mut again);
            prop_assert_eq!(&again[..], &bytes[..used]);
        }
    }
}
