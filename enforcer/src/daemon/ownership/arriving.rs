//! A kubelet that comes after the daemon's start.

use std::{path::Path, time::Instant};

use super::{foreign_kubepods, remember_below, was_seen};
use crate::{
    cgroup::{CgroupDir, KubeletSearch},
    config::Config,
    model::{CgroupId, CgroupPath},
    policy::Settings,
};

/// Whether a kubelet runs, now and whenever it is asked again. What cannot be read is none.
pub(in crate::daemon) fn running() -> impl FnMut() -> bool + Send + 'static {
    let mut search = KubeletSearch::new(Path::new("/proc"));
    move || search.latest(Instant::now()).is_ok_and(|kubelet| kubelet.is_some())
}

/// The kubepods that others have made on a node whose cgroups are the daemon's, as they were found last. A kubelet in a
/// container is known by nothing else.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Sightings(Vec<CgroupId>);

impl Sightings {
    /// Looks for them below the hierarchy's root, by name. Returns one that was there the last time too: another may
    /// be gone at once. `is_writer` says whether the daemon writes: then that of its driver is its own, marked or not.
    pub(in crate::daemon) fn look(
        &mut self,
        root: &CgroupDir,
        settings: &Settings,
        is_writer: bool,
    ) -> Option<CgroupPath> {
        let mut found = foreign_kubepods(root, &settings.cgroup_root);
        found.retain(|(driver, _)| !(is_writer && *driver == settings.cgroup_driver));
        let stays = found.iter().find(|(_, kubepods)| self.0.contains(&kubepods.id()));
        let stays = stays.map(|(_, kubepods)| kubepods.path().clone());
        self.0 = found.iter().map(|(_, kubepods)| kubepods.id()).collect();
        stays
    }
}

/// Remembers a kubelet that had no kubepods yet when the daemon started beside it.
#[derive(Debug)]
pub(in crate::daemon) struct Latch {
    config: Config,
    boot_id: String,
}

impl Latch {
    /// `None` if a kubelet is remembered for this boot already.
    pub(in crate::daemon) fn new(config: &Config, boot_id: &str) -> Option<Self> {
        let is_open = !was_seen(&config.run_dir, boot_id);
        is_open.then(|| Self { config: config.clone(), boot_id: boot_id.to_owned() })
    }

    /// Remembers the kubelet if it has made its kubepods by now; returns whether it has. Writes a file then.
    pub(in crate::daemon) fn close(&self, root: &CgroupDir) -> bool {
        remember_below(root, &self.config, &self.boot_id)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{config::Ownership, policy::CgroupDriver};

    struct Scene {
        temp: tempfile::TempDir,
        root: CgroupDir,
        settings: Settings,
    }

    impl Scene {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let root = CgroupDir::unchecked(temp.path()).unwrap();
            let settings = Settings { cgroup_driver: CgroupDriver::Cgroupfs, ..Settings::default() };
            Self { temp, root, settings }
        }

        fn make(&self, kubepods: &str) {
            fs::create_dir(self.temp.path().join(kubepods)).unwrap();
        }

        fn look(&self, sightings: &mut Sightings, is_writer: bool) -> Option<String> {
            sightings.look(&self.root, &self.settings, is_writer).map(|path| path.to_string())
        }
    }

    #[test]
    fn a_kubepods_of_anothers_is_a_kubelet_at_the_second_look() {
        let scene = Scene::new();
        let mut sightings = Sightings::default();
        assert_eq!([0, 1].map(|_| scene.look(&mut sightings, true)), [None, None]);
        scene.make("kubepods.slice");
        assert_eq!(scene.look(&mut sightings, true), None, "it may be gone at once");
        assert_eq!(scene.look(&mut sightings, true).as_deref(), Some("/kubepods.slice"));
        fs::remove_dir(scene.temp.path().join("kubepods.slice")).unwrap();
        assert_eq!(scene.look(&mut sightings, true), None);
        // Each time another one.
        scene.make("kubepods.slice");
        assert_eq!(scene.look(&mut sightings, true), None);
        let aside = scene.temp.path().join("aside");
        fs::rename(scene.temp.path().join("kubepods.slice"), aside).unwrap();
        scene.make("kubepods.slice");
        assert_eq!(scene.look(&mut sightings, true), None);
        assert_eq!(scene.look(&mut sightings, true).as_deref(), Some("/kubepods.slice"));
    }

    /// Where nothing can be marked, it must not take its own for a kubelet's.
    #[test]
    fn what_the_daemon_makes_itself_is_no_sign_of_a_kubelet() {
        let scene = Scene::new();
        let mut sightings = Sightings::default();
        scene.make("kubepods");
        assert_eq!([0, 1].map(|_| scene.look(&mut sightings, true)), [None, None]);
        // One that only observes makes none.
        let mut sightings = Sightings::default();
        assert_eq!(scene.look(&mut sightings, false), None);
        assert_eq!(scene.look(&mut sightings, false).as_deref(), Some("/kubepods"));
    }

    #[test]
    fn a_kubelet_is_remembered_once_it_has_made_its_kubepods() {
        let scene = Scene::new();
        let run_dir = tempfile::tempdir().unwrap();
        let config =
            Config { ownership: Ownership::Auto, run_dir: run_dir.path().to_owned(), ..Config::default() };
        let latch = Latch::new(&config, "b").unwrap();
        assert!(!latch.close(&scene.root) && !was_seen(run_dir.path(), "b"), "it has none yet");
        scene.make("kubepods");
        assert!(latch.close(&scene.root) && was_seen(run_dir.path(), "b"));
        assert!(Latch::new(&config, "b").is_none(), "once");
        assert!(Latch::new(&config, "c").is_some(), "by the next boot");
    }
}
