use proptest::prelude::*;

use super::{Btf, BtfError, Kind, Member, TypeId, VMLINUX};
use crate::sense::btf::build::Builder;

fn parse(builder: &Builder) -> Btf {
    Btf::parse(builder.blob()).unwrap()
}

#[test]
fn finds_members_through_anonymous_structures() {
    let mut b = Builder::default();
    let int = b.int("int", 4);
    let inner = b.structure("", 8, &[("a", int, 0), ("deep", int, 4)]);
    let middle = b.structure("", 16, &[("x", int, 0), ("", inner, 8)]);
    b.structure("outer", 32, &[("first", int, 0), ("", middle, 16)]);
    let btf = parse(&b);
    let outer = btf.find("outer", Kind::Struct).unwrap();
    assert_eq!(btf.member(outer, "deep"), Some(Member { offset_bytes: 28, type_id: TypeId(int) }));
    assert_eq!(btf.member(outer, "first").unwrap().offset_bytes, 0);
    assert_eq!(btf.member(outer, "absent"), None);
}

#[test]
fn a_member_of_a_named_structure_is_not_the_outer_ones() {
    let mut b = Builder::default();
    let int = b.int("int", 4);
    let inner = b.structure("inner", 4, &[("hidden", int, 0)]);
    b.structure("outer", 4, &[("named", inner, 0)]);
    let btf = parse(&b);
    assert_eq!(btf.member(btf.find("outer", Kind::Struct).unwrap(), "hidden"), None);
}

#[test]
fn refuses_bit_fields() {
    let mut b = Builder::default();
    let int = b.int("int", 4);
    // With the kind flag the upper byte is the width: here 1 bit at bit 8, then a whole field at bit 32.
    b.structure("flags", 8, &[]);
    let mut with_bits = Builder::default();
    with_bits.int("int", 4);
    with_bits.structure("strings", 0, &[("bit", int, 0), ("whole", int, 0)]);
    // Names: "int" at 1, "bit" at 5, "whole" at 9.
    with_bits.raw("flags", 1 << 31 | 4 << 24 | 2, 8, &[5, int, 1 << 24 | 8, 9, int, 32]);
    let btf = parse(&with_bits);
    let flags = btf.find("flags", Kind::Struct).unwrap();
    assert_eq!(btf.member(flags, "bit"), None);
    assert_eq!(btf.member(flags, "whole").unwrap().offset_bytes, 4);
}

#[test]
fn sizes_of_arrays_and_typedefs() {
    let mut b = Builder::default();
    let long = b.int("long", 8);
    let alias = b.typedef("alias_t", long);
    let array = b.array(alias, 4);
    b.structure("holder", 32, &[("counts", array, 0)]);
    let btf = parse(&b);
    assert_eq!(btf.size_bytes(TypeId(array)), Some(32));
    assert_eq!(btf.array(TypeId(array)), Some((TypeId(alias), 4)));
    assert_eq!(btf.size_bytes(TypeId(alias)), Some(8));
}

#[test]
fn follows_a_trace_typedef_to_its_parameters() {
    let mut b = Builder::default();
    let int = b.int("int", 4);
    let task = b.structure("task_struct", 8, &[]);
    let pointer = b.ptr(task);
    let proto = b.proto(&[pointer, int]);
    let to_proto = b.ptr(proto);
    b.typedef("btf_trace_mark_victim", to_proto);
    let btf = parse(&b);
    let trace = btf.find("btf_trace_mark_victim", Kind::Typedef).unwrap();
    let parameters = btf.parameters(btf.pointee(trace).unwrap()).unwrap();
    assert_eq!(parameters, [TypeId(pointer), TypeId(int)]);
    assert_eq!(btf.name(btf.pointee(parameters[0]).unwrap()), Some("task_struct"));
}

#[test]
fn a_typedef_cycle_ends() {
    let mut b = Builder::default();
    b.typedef("a", 2);
    b.typedef("b", 1);
    let btf = parse(&b);
    assert_eq!(btf.resolve(TypeId(1)), None);
    assert_eq!(btf.size_bytes(TypeId(2)), None);
}

#[test]
fn a_structure_within_itself_ends() {
    let mut b = Builder::default();
    b.structure("loop", 8, &[("", 1, 0), ("", 1, 0)]);
    let btf = parse(&b);
    assert_eq!(btf.member(TypeId(1), "nothing"), None);
}

#[test]
fn reports_what_is_wrong() {
    assert!(matches!(Btf::parse(vec![]), Err(BtfError::Short { .. })));
    assert!(matches!(Btf::parse(vec![0; 64]), Err(BtfError::NotBtf)));
    let mut b = Builder::default();
    b.int("int", 4);
    let blob = b.blob();
    assert!(matches!(Btf::parse(blob[..blob.len() - 1].to_vec()), Err(BtfError::Short { .. })));
    b.raw("new", 31 << 24, 0, &[]);
    assert!(matches!(Btf::parse(b.blob()), Err(BtfError::UnknownKind { id: 2, kind: 31 })));
}

#[test]
fn reads_the_running_kernel_if_it_has_btf() {
    if !std::path::Path::new(VMLINUX).exists() {
        return;
    }
    let btf = Btf::read(VMLINUX.as_ref()).unwrap();
    let task = btf.find("task_struct", Kind::Struct).unwrap();
    // The name of a task is an array of 16 characters on every kernel.
    let comm = btf.member(task, "comm").unwrap();
    assert_eq!(btf.size_bytes(comm.type_id), Some(16));
    let (pid, tgid) = (btf.member(task, "pid").unwrap(), btf.member(task, "tgid").unwrap());
    assert_eq!(tgid.offset_bytes, pid.offset_bytes + 4);
}

/// Asks every question of every type.
fn ask_everything(btf: &Btf) {
    for id in 0..=u32::try_from(btf.len()).unwrap() + 1 {
        let id = TypeId(id);
        let _ = (btf.kind(id), btf.name(id), btf.resolve(id), btf.pointee(id), btf.size_bytes(id));
        let _ = (btf.array(id), btf.member(id, "x"), btf.parameters(id), btf.enumerator(id, "x"));
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(btf) = Btf::parse(bytes) {
            ask_everything(&btf);
        }
    }

    #[test]
    fn random_types_never_panic(words in proptest::collection::vec(any::<u32>(), 0..96), strings in 0_usize..16) {
        let types: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut blob = Vec::from(0xeb9f_u16.to_ne_bytes());
        blob.extend_from_slice(&[1, 0]);
        for word in [24, 0, types.len(), types.len(), strings] {
            blob.extend_from_slice(&u32::try_from(word).unwrap().to_ne_bytes());
        }
        blob.extend_from_slice(&types);
        blob.extend(std::iter::repeat_n(b'x', strings));
        if let Ok(btf) = Btf::parse(blob) {
            ask_everything(&btf);
        }
    }

    #[test]
    fn one_broken_byte_never_panics(at in 0_usize..200, value in any::<u8>()) {
        let mut b = Builder::default();
        let int = b.int("int", 4);
        let inner = b.structure("", 8, &[("x", int, 0)]);
        b.structure("outer", 16, &[("", inner, 8)]);
        b.enumeration("e", &[("x", 1)]);
        let array = b.array(int, 3);
        b.proto(&[int, array]);
        let mut blob = b.blob();
        let at = at % blob.len();
        blob[at] = value;
        if let Ok(btf) = Btf::parse(blob) {
            ask_everything(&btf);
        }
    }
}
