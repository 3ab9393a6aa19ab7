//! BTF: any bytes are refused or give a table whose answers agree with each other.

use enforcer::sense::btf::{Btf, Kind, TypeId};

use super::text::check_message;

/// The most names of one input that are asked for.
const MOST_NAMES: usize = 100;

const KINDS: [Kind; 5] = [Kind::Struct, Kind::Union, Kind::Typedef, Kind::Func, Kind::Enum];

/// The bytes are a blob.
pub fn check(bytes: &[u8]) {
    let btf = match Btf::parse(bytes.to_vec()) {
        Ok(btf) => btf,
        Err(error) => return check_message(&error.to_string()),
    };
    // A type takes twelve bytes at least.
    assert!(btf.len() <= bytes.len() / 12, "{} types in {} bytes", btf.len(), bytes.len());
    let names: Vec<&str> = bytes
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .filter_map(|name| str::from_utf8(name).ok())
        .take(MOST_NAMES)
        .collect();
    for name in &names {
        for kind in KINDS {
            let Some(id) = btf.find(name, kind) else { continue };
            assert_eq!(btf.find(name, kind), Some(id));
            assert_eq!(btf.kind(id), Some(kind), "{name} is found as {kind:?}");
            assert_eq!(btf.name(id), Some(*name));
            check_type(&btf, id, &names);
        }
    }
}

fn check_type(btf: &Btf, id: TypeId, names: &[&str]) {
    for other in [btf.resolve(id), btf.pointee(id), btf.prototype(id)].into_iter().flatten() {
        assert!(usize::try_from(other.number()).is_ok_and(|number| number <= btf.len()), "{other:?}");
    }
    if let Some((element, _count)) = btf.array(id) {
        let _element_size = btf.size_bytes(element);
    }
    let _size = btf.size_bytes(id);
    for name in names.iter().take(16) {
        assert_eq!(btf.member(id, name), btf.member(id, name));
        let _value = btf.enumerator(id, name);
    }
    let parameters = btf.parameters(id).unwrap_or_default();
    assert!(parameters.len() <= 0xffff, "{} parameters", parameters.len());
}
