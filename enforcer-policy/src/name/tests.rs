use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::{
    model::Pod,
    sample::{app, pod as pod_of},
};

const DRIVERS: [CgroupDriver; 2] = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd];

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn name(components: &[&str]) -> CgroupName {
    components.iter().fold(CgroupName::root(), |name, part| name.child(part).unwrap())
}

/// `pkg/kubelet/cm/cgroup_manager_linux_test.go`, `TestCgroupNameToSystemd`, `TestCgroupNameToSystemdBasename`.
#[rstest]
#[case(&[], "/")]
#[case(&["system"], "/system.slice")]
#[case(&["system", "Burstable"], "/system.slice/system-Burstable.slice")]
#[case(&["Burstable"], "/Burstable.slice")]
#[case(&["Burstable", "pod-123"], "/Burstable.slice/Burstable-pod_123.slice")]
#[case(&["test", "a", "b"], "/test.slice/test-a.slice/test-a-b.slice")]
#[case(&["test", "a", "b", "Burstable"], "/test.slice/test-a.slice/test-a-b.slice/test-a-b-Burstable.slice")]
#[case(
    &["BestEffort", "pod-6c1a4e95-6bb6-11e6-bc26-28d2444e470d"],
    "/BestEffort.slice/BestEffort-pod_6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice"
)]
#[case(&["kubepods"], "/kubepods.slice")]
fn slices_are_the_kubelets(#[case] components: &[&str], #[case] slices: &str) {
    let name = name(components);
    assert_eq!(name.path(CgroupDriver::Systemd), Ok(path(slices)));
    assert_eq!(CgroupName::parse(&path(slices), CgroupDriver::Systemd), Ok(name));
}

/// The same file's `TestCgroupNameToCgroupfs`.
#[rstest]
#[case(&[], "/")]
#[case(&["Burstable"], "/Burstable")]
#[case(&["Burstable", "pod-123"], "/Burstable/pod-123")]
fn folders_are_the_kubelets(#[case] components: &[&str], #[case] folders: &str) {
    let name = name(components);
    assert_eq!(name.path(CgroupDriver::Cgroupfs), Ok(path(folders)));
    assert_eq!(CgroupName::parse(&path(folders), CgroupDriver::Cgroupfs), Ok(name));
}

/// The same file's `TestParseSystemdToCgroupName`.
#[rstest]
#[case("/test")]
#[case("/test.slice")]
fn a_slice_may_be_written_as_a_folder(#[case] text: &str) {
    assert_eq!(CgroupName::parse(&path(text), CgroupDriver::Systemd), Ok(name(&["test"])));
}

/// The same file's `TestNewCgroupName`: what would not come back is refused.
#[rstest]
#[case("")]
#[case("_")]
#[case("a_b")]
#[case("a/b")]
#[case(".")]
#[case("..")]
#[case("a\0b")]
fn components_that_would_not_come_back_are_refused(#[case] component: &str) {
    let refused = NameError::Component { component: component.to_owned() };
    assert_eq!(CgroupName::root().child(component), Err(refused));
}

#[rstest]
#[case("/a.slice/b.slice")]
#[case("/a/a-b.slice")]
#[case("/a.slice/b")]
#[case("/a-b.slice")]
#[case("/.slice")]
#[case("/a.slice/a-.slice")]
#[case("/kubepods.slice/kubepods-podx.slice/cri-containerd-1.scope")]
fn what_is_no_path_of_slices_is_refused(#[case] text: &str) {
    let refused = NameError::NotSlices { path: path(text) };
    assert_eq!(CgroupName::parse(&path(text), CgroupDriver::Systemd), Err(refused));
}

const UID: &str = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d";

#[rstest]
#[case(
    "/",
    QosClass::Guaranteed,
    "/kubepods/pod6c1a4e95-6bb6-11e6-bc26-28d2444e470d/app",
    "/kubepods.slice/kubepods-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice/\
     enforcer-6c1a4e95_6bb6_11e6_bc26_28d2444e470d-app.scope"
)]
#[case(
    "/",
    QosClass::Burstable,
    "/kubepods/burstable/pod6c1a4e95-6bb6-11e6-bc26-28d2444e470d/app",
    "/kubepods.slice/kubepods-burstable.slice/\
     kubepods-burstable-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice/\
     enforcer-6c1a4e95_6bb6_11e6_bc26_28d2444e470d-app.scope"
)]
#[case(
    "/my-root/a",
    QosClass::BestEffort,
    "/my-root/a/kubepods/besteffort/pod6c1a4e95-6bb6-11e6-bc26-28d2444e470d/app",
    "/my_root.slice/my_root-a.slice/my_root-a-kubepods.slice/my_root-a-kubepods-besteffort.slice/\
     my_root-a-kubepods-besteffort-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice/\
     enforcer-6c1a4e95_6bb6_11e6_bc26_28d2444e470d-app.scope"
)]
fn pods_stand_where_the_kubelet_puts_them(
    #[case] root: &str,
    #[case] class: QosClass,
    #[case] folders: &str,
    #[case] slices: &str,
) {
    let uid = PodUid::new(UID).unwrap();
    for (driver, expected) in DRIVERS.into_iter().zip([folders, slices]) {
        assert_eq!(check(&path(root), driver), Ok(()));
        let pod = pod(&kubepods(&path(root), driver), class, &uid, driver);
        assert_eq!(container(&pod, &uid, "app", driver).as_str(), expected);
    }
}

#[test]
fn a_root_may_be_given_as_a_slice() {
    let systemd = CgroupDriver::Systemd;
    assert_eq!(kubepods(&path("/machine.slice"), systemd).as_str(), "/machine.slice/machine-kubepods.slice");
    assert_eq!(kubepods(&path("/machine"), systemd), kubepods(&path("/machine.slice"), systemd));
    assert_eq!(kubepods(&path("/machine.slice"), CgroupDriver::Cgroupfs).as_str(), "/machine.slice/kubepods");
}

#[rstest]
#[case("/my_root", NameError::Component { component: String::from("my_root") })]
#[case("/my root", NameError::Unit { component: String::from("my root") })]
#[case("/a.slice/b", NameError::NotSlices { path: path("/a.slice/b") })]
fn a_root_that_systemd_cannot_name_is_refused(#[case] root: &str, #[case] refused: NameError) {
    assert_eq!(check(&path(root), CgroupDriver::Systemd), Err(refused));
    assert_eq!(check(&path(root), CgroupDriver::Cgroupfs), Ok(()));
}

#[test]
fn a_root_leaves_room_for_the_pods_below_it() {
    let root = |length: usize| path(&"r".repeat(length));
    let fits = (1..255).take_while(|&length| check(&root(length), CgroupDriver::Systemd).is_ok()).count();
    let uid = PodUid::new(&"u".repeat(PodUid::MAX_BYTES)).unwrap();
    let longest = |length| {
        let kubepods = kubepods(&root(length), CgroupDriver::Systemd);
        let pod = pod(&kubepods, QosClass::BestEffort, &uid, CgroupDriver::Systemd);
        pod.names().last().unwrap().len()
    };
    assert_eq!(longest(fits), NAME_MAX);
}

fn mirror(name: &str, hash: &str) -> Pod {
    let annotations = [("kubernetes.io/config.mirror", hash), ("kubernetes.io/config.hash", hash)];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Pod { annotations, ..pod_of(name, vec![app("c", &[], &[])]) }
}

#[test]
fn a_mirror_pod_has_the_static_pods_cgroup() {
    let hash = "0123456789abcdef0123456789abcdef";
    let mut plain = mirror("plain", hash);
    plain.annotations.remove("kubernetes.io/config.mirror");
    let pods = [plain, mirror("a", hash), mirror("b", hash), mirror("c", "../x"), mirror("d", "uid-plain")];
    let uids: Vec<_> = cgroup_uids(&pods).iter().map(ToString::to_string).collect();
    // The second to claim it, what is no uid, and another pod's uid: each stays with its own.
    assert_eq!(uids, ["uid-plain", hash, "uid-b", "uid-c", "uid-d"]);
}

fn any_name() -> impl Strategy<Value = CgroupName> {
    let component = "[a-zA-Z0-9.:-]{1,12}|\\PC{1,6}";
    proptest::collection::vec(component, 0..5).prop_map(|components| {
        components.iter().fold(CgroupName::root(), |name, part| name.child(part).unwrap_or(name))
    })
}

fn any_driver() -> impl Strategy<Value = CgroupDriver> {
    prop_oneof![Just(CgroupDriver::Cgroupfs), Just(CgroupDriver::Systemd)]
}

proptest! {
    #[test]
    fn a_name_comes_back_from_its_path(name in any_name(), driver in any_driver()) {
        let path = name.path(driver).unwrap();
        prop_assert_eq!(CgroupPath::parse(path.as_str()), Ok(path.clone()));
        prop_assert_eq!(path.names().count(), name.components().count());
        prop_assert_eq!(CgroupName::parse(&path, driver), Ok(name));
    }

    #[test]
    fn a_path_comes_back_from_its_name(text in "(/[a-c._-]{0,4}(\\.slice)?){0,4}", driver in any_driver()) {
        let Ok(path) = CgroupPath::parse(&text) else { return Ok(()) };
        if let Ok(name) = CgroupName::parse(&path, driver) {
            let again = name.path(driver).unwrap();
            prop_assert!(again == path || again == given(&path, driver), "{path} became {again}");
        }
    }

    #[test]
    fn a_pod_stays_below_its_root_and_is_found_again(
        root in "(/[a-z][a-z0-9-]{0,8}){0,3}",
        class in prop_oneof![
            Just(QosClass::Guaranteed), Just(QosClass::Burstable), Just(QosClass::BestEffort)
        ],
        uid in "[A-Za-z0-9-]{1,63}",
        driver in any_driver(),
    ) {
        let (root, uid) = (path(&root), PodUid::new(&uid).unwrap());
        prop_assert_eq!(check(&root, driver), Ok(()));
        let base = given(&root, driver);
        let pod = pod(&kubepods(&root, driver), class, &uid, driver);
        let above: Vec<_> = std::iter::successors(pod.parent(), CgroupPath::parent).collect();
        prop_assert!(above.contains(&base), "{pod} is not below {base}");
        let name = CgroupName::parse(&pod, driver).unwrap();
        let own = format!("pod{uid}");
        prop_assert_eq!(name.components().last(), Some(own.as_str()));
    }

    #[test]
    fn a_container_stays_in_its_pod_and_to_itself(
        left in "\\PC{0,300}|[./_]{0,4}|[a-z.-]{1,8}|[a-z-]{150,260}",
        right in "\\PC{0,300}|[./_]{0,4}|[a-z.-]{1,8}",
        uids in ("[a-c-]{1,3}", "[a-c-]{1,3}|[a-c-]{63}"),
        driver in any_driver(),
    ) {
        let uids = [uids.0, uids.1].map(|uid| PodUid::new(&uid).unwrap());
        let pod = path("/kubepods/podx");
        let of = |uid, name| container(&pod, uid, name, driver);
        let path = of(&uids[0], &left);
        prop_assert_eq!(CgroupPath::parse(path.as_str()), Ok(path.clone()));
        prop_assert_eq!(path.parent(), Some(pod.clone()));
        prop_assert_eq!(of(&uids[0], &right) == path, left == right);
        prop_assert_eq!(is_scope(&path), driver == CgroupDriver::Systemd);
        // A scope is unlike any other pod's, whatever slice that is in.
        if driver == CgroupDriver::Systemd {
            prop_assert_eq!(of(&uids[1], &right) == path, left == right && uids[0] == uids[1]);
        }
    }
}
