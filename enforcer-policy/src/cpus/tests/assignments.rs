//! Tests of the checkpoint's content.

use rstest::rstest;
use serde::{
    Deserialize,
    de::{
        Deserializer, IntoDeserializer, Visitor,
        value::{Error, MapDeserializer},
    },
};

use super::machines::{machine, set};
use crate::{
    cpus::{Assignments, Owner, Problem},
    model::PodUid,
};

/// A value as in JSON.
#[derive(Clone)]
enum Value {
    Text(&'static str),
    Number(u64),
    Map(Vec<(&'static str, Value)>),
}

impl<'de> Deserializer<'de> for Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Text(text) => visitor.visit_str(text),
            Self::Number(number) => visitor.visit_u64(number),
            Self::Map(entries) => visitor.visit_map(MapDeserializer::new(entries.into_iter())),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl IntoDeserializer<'_, Error> for Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// A checkpoint as the kubelet writes it; with an unknown key.
fn checkpoint(policy: &'static str, shared: &'static str, pod: Option<Value>, checksum: u64) -> Value {
    let mut keys = vec![
        ("policyName", Value::Text(policy)),
        ("defaultCpuSet", Value::Text(shared)),
        ("checksum", Value::Number(checksum)),
        ("dataChecksum", Value::Number(1)),
    ];
    keys.extend(pod.map(|pod| ("entries", Value::Map(vec![("pod", pod)]))));
    Value::Map(keys)
}

fn containers(first: &'static str, second: &'static str) -> Value {
    Value::Map(vec![("container1", Value::Text(first)), ("container2", Value::Text(second))])
}

/// `TestCheckpointStateRestore` in `pkg/kubelet/cm/cpumanager/state/state_checkpoint_test.go`: of 1.18 to 1.35, and of
/// 1.36.
#[rstest]
#[case("none", "4-6", None, 354_655_845, true)]
#[case("none", "1-3", Some(containers("4-6", "1-3")), 3_610_638_499, true)]
#[case("static", "7-9", Some(containers("4-6", "1-3")), 1_942_532_442, false)]
#[case("static", "1-3", Some(containers("4-6", "7-9")), 1_659_543_133, false)]
#[case("none", "7-9", None, 98_002_435, false)]
fn the_checksums_of_kubelets_hold(
    #[case] policy: &'static str,
    #[case] shared: &'static str,
    #[case] pod: Option<Value>,
    #[case] checksum: u64,
    #[case] is_ours: bool,
) {
    let mut read = Assignments::deserialize(checkpoint(policy, shared, pod, checksum)).unwrap();
    assert_eq!((read.policy_name.as_str(), &read.default_cpu_set), (policy, &set(shared)));
    assert!(read.is_intact());
    assert_eq!(read.expected_checksum() == checksum, is_ours);
    read.default_cpu_set = set("0");
    assert!(!read.is_intact());
    read.checksum = 0;
    assert!(read.is_intact(), "none is none");
}

#[test]
fn a_checkpoint_is_read_and_written_by_its_keys() {
    let read =
        Assignments::deserialize(checkpoint("static", "0,3", Some(containers("1", "2,4")), 7)).unwrap();
    let pod = PodUid::new("pod").unwrap();
    assert_eq!(read.get(&pod, "container2"), Some(&set("2,4")));
    assert_eq!((read.get(&pod, "other"), read.exclusive(), read.checksum), (None, set("1-2,4"), 7));
    let bytes = postcard::to_stdvec(&read).unwrap();
    assert_eq!(postcard::from_bytes::<Assignments>(&bytes), Ok(read));
}

#[test]
fn what_is_no_checkpoint_is_refused_with_what_is_wrong() {
    let refused = |value: Value| Assignments::deserialize(value).unwrap_err().to_string();
    let wrong = refused(checkpoint("static", "1.3", None, 0));
    assert_eq!(wrong, "\"1.3\" is neither a CPU's number nor a range such as 0-3");
    let pod = ("../etc", containers("1", "2"));
    let keys = vec![
        ("policyName", Value::Text("static")),
        ("defaultCpuSet", Value::Text("0")),
        ("entries", Value::Map(vec![pod])),
    ];
    let wrong = refused(Value::Map(keys));
    assert_eq!(wrong, "\"../etc\" is not a pod's uid: it has 1 to 63 letters, digits and hyphens");
    // The first version had containers without pods.
    let old = refused(checkpoint("static", "0", Some(Value::Text("1-3")), 0));
    assert!(old.contains("invalid type: string"), "{old}");
}

#[test]
fn everything_that_is_wrong_is_reported() {
    let machine = machine("laptop");
    let of = |shared: &str, entries: &[(&str, &str, &str)]| {
        let mut assignments = Assignments { default_cpu_set: set(shared), ..Assignments::default() };
        for (pod, container, cpus) in entries {
            let pod = assignments.entries.entry(PodUid::new(pod).unwrap()).or_default();
            pod.insert((*container).to_owned(), set(cpus));
        }
        assignments
    };
    let owner = |pod: &str, container: &str| Owner {
        pod: PodUid::new(pod).unwrap(),
        container: container.to_owned(),
    };
    let reserved = set("0,4");
    assert_eq!(Assignments::default().valid_for(&machine, &reserved), []);
    let right = of("0-1,4-5", &[("a", "x", "2,6"), ("a", "y", "3,7")]);
    assert_eq!(right.valid_for(&machine, &reserved), []);

    let mut wrong = of("1-2,9", &[("a", "x", "2,4"), ("a", "y", "3-4"), ("b", "x", "3,8"), ("c", "x", "3")]);
    wrong.policy_name = String::from("none");
    let two = |first: Owner, second: Owner, cpus| Problem::TwoOwners { first, second, cpus: set(cpus) };
    let expected = [
        Problem::Policy { name: String::from("none") },
        Problem::SharedPoolOffline { cpus: set("9") },
        Problem::ReservedNotShared { cpus: set("0,4") },
        Problem::Unassigned { cpus: set("0,5-7") },
        Problem::Reserved { owner: owner("a", "x"), cpus: set("4") },
        Problem::Shared { owner: owner("a", "x"), cpus: set("2") },
        Problem::Reserved { owner: owner("a", "y"), cpus: set("4") },
        Problem::Offline { owner: owner("b", "x"), cpus: set("8") },
        two(owner("a", "x"), owner("a", "y"), "4"),
        two(owner("a", "y"), owner("b", "x"), "3"),
        two(owner("a", "y"), owner("c", "x"), "3"),
    ];
    assert_eq!(wrong.valid_for(&machine, &reserved), expected);
    let empty = of("", &[("a", "x", "0-7")]);
    assert_eq!(empty.valid_for(&machine, &set(""))[0], Problem::SharedPoolEmpty);
}
