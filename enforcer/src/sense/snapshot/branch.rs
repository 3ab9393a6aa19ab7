use super::{Charge, ChargeFiles, Missing, Seen};
use crate::{
    cgroup::{self, CgroupDir},
    model::CgroupPath,
};

/// The most cgroups below one that are looked at: a pod has few containers, and whoever may make cgroups there could take the
/// daemon's open files away with many.
pub const MOST_BELOW: usize = 16;

/// What a cgroup is charged for, and those right below it, open: a pod and its containers.
#[derive(Debug)]
pub struct BranchFiles {
    own: ChargeFiles,
    below: Vec<ChargeFiles>,
}

impl BranchFiles {
    /// Opens them. What comes to lie below it later is not looked at.
    pub fn open(dir: &CgroupDir) -> Result<Self, cgroup::Error> {
        let own = ChargeFiles::open(dir)?;
        let mut below = Vec::new();
        let paths = dir.children()?.into_iter().filter_map(|name| CgroupPath::parse(&name).ok());
        for path in paths.take(MOST_BELOW) {
            match dir.open(&path).and_then(|dir| ChargeFiles::open(&dir)) {
                Ok(files) => below.push(files),
                // It has gone, or memory is not counted there: then it is above.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { own, below })
    }

    /// Of a cgroup that has none below it.
    pub(crate) fn leaf(own: ChargeFiles) -> Self {
        Self { own, below: Vec::new() }
    }

    /// The whole, in bytes: one system call, no allocation.
    pub fn current_bytes(&self, buffer: &mut [u8]) -> Seen<u64> {
        self.own.current_bytes(buffer)
    }

    /// The whole, with the parts as [those below tell them](Charge::made_of): two system calls for each, no allocation.
    pub fn charge(&self, buffer: &mut [u8]) -> Seen<Charge> {
        let (own, below) = self.read(buffer, ChargeFiles::charge, Charge::plus)?;
        Ok(own.made_of(below))
    }

    /// What its own files tell, and what those of the cgroups below tell together.
    pub(super) fn read<T: Default>(
        &self,
        buffer: &mut [u8],
        read: impl Fn(&ChargeFiles, &mut [u8]) -> Seen<T>,
        plus: impl Fn(T, T) -> T,
    ) -> Seen<(T, T)> {
        let own = read(&self.own, buffer)?;
        let mut below = T::default();
        for files in &self.below {
            match read(files, buffer) {
                Ok(more) => below = plus(below, more),
                // What is left of it is charged above.
                Err(Missing::Gone) => {}
                Err(missing) => return Err(missing),
            }
        }
        Ok((own, below))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn write(dir: &Path, current: u64, anon: u64, inactive_file: u64) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("memory.current"), format!("{current}\n")).unwrap();
        let stat = format!("anon {anon}\nfile {inactive_file}\nshmem 0\ninactive_file {inactive_file}\n");
        fs::write(dir.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn a_pods_parts_are_its_containers() {
        let temp = tempfile::tempdir().unwrap();
        let pod = temp.path();
        write(pod, 700, 100, 0);
        write(&pod.join("app"), 600, 90, 500);
        write(&pod.join("sidecar"), 100, 20, 70);
        // Memory is not counted here, and this is no cgroup.
        fs::create_dir(pod.join("threads")).unwrap();
        fs::write(pod.join("cgroup.procs"), "").unwrap();
        let files = BranchFiles::open(&CgroupDir::unchecked(pod).unwrap()).unwrap();
        let mut buffer = [0; 512];
        let charge = files.charge(&mut buffer).unwrap();
        assert_eq!((charge.current_bytes, charge.split.anon_bytes), (700, 110));
        assert_eq!(charge.usage().working_set_bytes, 130);
        assert_eq!(files.current_bytes(&mut buffer), Ok(700));
        fs::write(pod.join("app/memory.stat"), "anon x\n").unwrap();
        assert_eq!(files.charge(&mut buffer), Err(Missing::Malformed));
    }

    #[test]
    fn no_more_than_a_few_are_opened() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path(), 100, 100, 0);
        for number in 0..MOST_BELOW + 9 {
            write(&temp.path().join(number.to_string()), 1, 1, 0);
        }
        let files = BranchFiles::open(&CgroupDir::unchecked(temp.path()).unwrap()).unwrap();
        assert_eq!(files.below.len(), MOST_BELOW);
    }
}
