use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn private(parent: &Path) -> Result<Folder, StoreError> {
    Folder::private(parent, "journal")
}

#[test]
fn a_folder_that_others_may_write_to_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    private(&state).unwrap();
    for path in [state.clone(), state.join("journal")] {
        for (mode, whom, change) in
            [(0o777, "everybody", "o-w,g-w"), (0o752, "everybody (", "o-w"), (0o2770, "its group (", "g-w")]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = private(&state).unwrap_err().to_string();
            assert!(refused.contains(whom), "{refused}");
            assert!(refused.contains(&format!("chmod {change} {}", path.display())), "{refused}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4_242), None).unwrap();
            let refused = private(&state).unwrap_err().to_string();
            assert!(refused.contains("belongs to the user 4242") && refused.contains("chown 0"), "{refused}");
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        private(&state).unwrap();
    }
}

#[test]
fn no_link_is_followed_below_the_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("file"), "theirs").unwrap();
    let state = dir.path().join("state");
    // Whatever the umask of who runs this lets through.
    fs::DirBuilder::new().mode(0o750).create(&state).unwrap();
    symlink(&elsewhere, state.join("journal")).unwrap();
    assert!(matches!(private(&state), Err(StoreError::Unsafe { .. })));
    fs::remove_file(state.join("journal")).unwrap();
    let folder = private(&state).unwrap();
    symlink(elsewhere.join("file"), state.join("journal/link")).unwrap();
    fs::create_dir(state.join("journal/folder")).unwrap();
    for name in ["link", "folder"] {
        for access in [Access::Read, Access::Write, Access::Make, Access::New] {
            assert!(folder.open(name, access).is_err(), "{name} {access:?}");
        }
        assert!(folder.lock(name).is_err());
    }
    assert_eq!(fs::read_to_string(elsewhere.join("file")).unwrap(), "theirs");
    folder.open("other", Access::New).unwrap();
    assert_eq!(folder.rename("other", "link").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
}
