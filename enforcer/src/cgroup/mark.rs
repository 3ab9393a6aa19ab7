//! What the next start must know of a cgroup, kept on the cgroup itself.

use std::{collections::BTreeSet, io, sync::Arc};

use rustix::{fs::XattrFlags, io::Errno};
use serde::{Deserialize, Serialize};

use super::{CgroupDir, Error};
use crate::model::{CgroupFile, CgroupPath, CgroupValue, Owner, OwnerLevel, PodName, PodUid, SmallMap};

/// The extended attribute. Reading or writing `trusted.*` needs `CAP_SYS_ADMIN`.
const NAME: &str = "trusted.enforcer";
/// The format. Marks from before it had a number are of the first.
const VERSION: u32 = 1;
/// A mark's size in bytes, at most; the kernel allows 64 KiB.
const MAX_BYTES: usize = 16 * 1024;

/// What this daemon did to a cgroup, kept as an extended attribute of the cgroup's directory.
///
/// So it lives exactly as long as the cgroup, and the next start knows which cgroups it made, which files it wrote, and
/// what they held before.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    #[serde(default)]
    version: Version,
    /// Whether this daemon made the cgroup. Only such a cgroup is ever removed.
    pub made: bool,
    /// The pod's namespace, name and uid, and the container, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<PodMark>,
    /// On kubepods only: the cgroups elsewhere that are written to and belong to others.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub outside: BTreeSet<String>,
    /// The written files, and what each held before; `None` for the kernel's value in a new cgroup.
    #[serde(with = "as_text")]
    pub files: SmallMap<CgroupFile, Option<CgroupValue>>,
}

/// The format that a mark is written in.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Version(u32);

impl Default for Version {
    fn default() -> Self {
        Self(VERSION)
    }
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodMark {
    /// Shared with the owner of the cgroup: the ledger holds a mark of each.
    #[serde(flatten, with = "as_name")]
    pod: Arc<PodName>,
    /// Shared as well.
    uid: Uid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<Box<str>>,
}

/// A pod's uid; `None` if a mark holds another text.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "String", into = "String")]
struct Uid(Option<PodUid>);

impl From<String> for Uid {
    fn from(text: String) -> Self {
        Self(PodUid::new(&text))
    }
}

impl From<Uid> for String {
    fn from(Uid(uid): Uid) -> Self {
        uid.as_ref().map(PodUid::to_string).unwrap_or_default()
    }
}

impl Mark {
    /// A mark without files.
    #[must_use]
    pub fn new(made: bool, level: Option<&OwnerLevel>) -> Self {
        let pod = level.and_then(|level| {
            let (pod, uid) = (level.shared_pod()?, level.uid()?);
            Some(PodMark {
                pod: Arc::clone(pod),
                uid: Uid(Some(uid.clone())),
                container: level.container().map(Box::from),
            })
        });
        Self { made, pod, ..Self::default() }
    }

    /// The same with the texts of the cgroup's owner, if that is the one which it names.
    pub(super) fn sharing(mut self, level: Option<&OwnerLevel>) -> Self {
        let pod = Self::new(self.made, level).pod;
        if self.pod == pod {
            self.pod = pod;
        }
        self
    }

    /// Its serialized form.
    pub(super) fn content(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Parses a mark; `None` if it is not one, or one of a newer version.
    #[must_use]
    pub fn parse(content: &str) -> Option<Self> {
        serde_json::from_str(content).ok().filter(|mark: &Self| mark.version.0 <= VERSION)
    }

    /// The owner of the cgroup at `path`, if it is a pod's or a container's.
    #[must_use]
    pub fn owner(&self, path: &CgroupPath) -> Option<Owner> {
        let PodMark { pod, uid: Uid(uid), container } = self.pod.clone()?;
        let uid = uid?;
        let level = match container {
            Some(container) => OwnerLevel::Container { pod, uid, container: container.into() },
            None => OwnerLevel::Pod { pod, uid },
        };
        Some(Owner { path: path.clone(), level })
    }
}

/// The version of a mark that a newer enforcer wrote.
fn newer_version(content: &str) -> Option<u32> {
    /// All that is known of a newer format.
    #[derive(Deserialize)]
    struct Newer {
        version: Version,
    }
    let newer: Newer = serde_json::from_str(content).ok()?;
    (newer.version.0 > VERSION).then_some(newer.version.0)
}

/// A pod's namespace and name, as members of the mark.
mod as_name {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::PodName;

    #[derive(Deserialize, Serialize)]
    struct Members<'name> {
        namespace: std::borrow::Cow<'name, str>,
        name: std::borrow::Cow<'name, str>,
    }

    pub(super) fn serialize<S: Serializer>(pod: &PodName, serializer: S) -> Result<S::Ok, S::Error> {
        let (namespace, name) = (pod.namespace.as_str().into(), pod.name.as_str().into());
        Members { namespace, name }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<PodName>, D::Error> {
        let Members { namespace, name } = Members::deserialize(deserializer)?;
        Ok(Arc::new(PodName { namespace: namespace.into_owned(), name: name.into_owned() }))
    }
}

/// Files by name, with their content.
mod as_text {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::{CgroupFile, CgroupValue, SmallMap};

    type Files = SmallMap<CgroupFile, Option<CgroupValue>>;

    pub(super) fn serialize<S: Serializer>(files: &Files, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |value: &Option<CgroupValue>| value.as_ref().map(ToString::to_string);
        serializer.collect_map(files.iter().map(|(file, value)| (file.name(), text(value))))
    }

    /// A file that no plan sets has nothing to be restored; content that is no value of its file counts as the
    /// kernel's.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Files, D::Error> {
        let files = BTreeMap::<String, Option<String>>::deserialize(deserializer)?;
        let typed = files.into_iter().filter_map(|(name, text)| {
            let file = CgroupFile::named(&name)?;
            Some((file, text.and_then(|text| file.parse(&text))))
        });
        Ok(typed.collect())
    }
}

impl CgroupDir {
    /// Its mark; `None` if it has none, an unreadable one, or one of a newer version.
    pub fn mark(&self) -> Result<Option<Mark>, Error> {
        Ok(self.mark_text()?.and_then(|text| Mark::parse(&text)))
    }

    /// Whether it has a mark of this or any version.
    pub fn is_marked(&self) -> Result<bool, Error> {
        let text = self.mark_text()?;
        Ok(text.is_some_and(|text| Mark::parse(&text).is_some() || newer_version(&text).is_some()))
    }

    fn mark_text(&self) -> Result<Option<String>, Error> {
        let mut content = vec![0_u8; MAX_BYTES];
        match rustix::fs::fgetxattr(self, NAME, content.as_mut_slice()) {
            Ok(len) => {
                content.truncate(len);
                Ok(String::from_utf8(content).ok())
            }
            // NODATA: it has none. The others: this file system or process cannot have any.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM | Errno::RANGE) => Ok(None),
            Err(errno) => Err(Error::Read {
                path: self.path().to_string(),
                file: NAME.to_owned(),
                source: errno.into(),
            }),
        }
    }

    /// Keeps the mark of a newer version, under a name of its own, for that to find after this version has run.
    fn set_newer_mark_aside(&self) -> Result<(), Error> {
        let Some(text) = self.mark_text()? else { return Ok(()) };
        let Some(version) = newer_version(&text) else { return Ok(()) };
        let name = format!("{NAME}.v{version}");
        rustix::fs::fsetxattr(self, name.as_str(), text.as_bytes(), XattrFlags::empty()).map_err(|errno| {
            let (path, value) = (self.path().to_string(), String::from("a newer version's mark"));
            Error::Write { path, file: name, value, source: errno.into() }
        })
    }

    /// Replaces its mark. One of a newer version is kept as `trusted.enforcer.v<version>`.
    pub fn set_mark(&self, mark: &Mark) -> Result<(), Error> {
        let failed = |source: io::Error| Error::Write {
            path: self.path().to_string(),
            file: NAME.to_owned(),
            value: String::from("a mark"),
            source,
        };
        let content = mark.content().map_err(|error| failed(error.into()))?;
        if content.len() > MAX_BYTES {
            return Err(failed(Errno::FBIG.into()));
        }
        self.set_newer_mark_aside()?;
        rustix::fs::fsetxattr(self, NAME, content.as_bytes(), XattrFlags::empty())
            .map_err(|errno| failed(errno.into()))
    }

    /// Removes its mark.
    pub fn unmark(&self) -> Result<(), Error> {
        match rustix::fs::fremovexattr(self, NAME) {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(errno) => Err(Error::Write {
                path: self.path().to_string(),
                file: NAME.to_owned(),
                value: String::new(),
                source: errno.into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_its_version_and_one_without_is_of_the_first() {
        let content = Mark::new(true, None).content().unwrap();
        assert_eq!(content, r#"{"version":1,"made":true,"files":{}}"#);
        assert_eq!(Mark::parse(&content), Some(Mark::new(true, None)));
        assert_eq!(Mark::parse(r#"{"made":true,"files":{}}"#), Some(Mark::new(true, None)));
        let newer = r#"{"version":2,"made":true,"files":{},"more":1}"#;
        assert_eq!((Mark::parse(newer), newer_version(newer)), (None, Some(2)));
        assert_eq!(newer_version(&content), None);
    }

    #[test]
    fn a_mark_shares_the_texts_of_its_owner_also_after_a_restart() {
        let name = PodName { namespace: "default".into(), name: "web".into() };
        let level = |container: &str| OwnerLevel::Container {
            pod: Arc::new(name.clone()),
            uid: PodUid::new("0123-abcd").unwrap(),
            container: container.into(),
        };
        let shares = |mark: &Mark, level: &OwnerLevel| {
            let PodMark { pod, uid, .. } = mark.pod.as_ref().unwrap();
            let uid = uid.0.as_ref().unwrap().as_str();
            Arc::ptr_eq(pod, level.shared_pod().unwrap())
                && uid.as_ptr() == level.uid().unwrap().as_str().as_ptr()
        };
        let app = level("app");
        let made = Mark::new(true, Some(&app));
        assert!(shares(&made, &app));
        let content = made.content().unwrap();
        let text = r#""pod":{"namespace":"default","name":"web","uid":"0123-abcd","container":"app"}"#;
        assert!(content.contains(text), "{content}");
        let read = Mark::parse(&content).unwrap();
        assert!(read == made && !shares(&read, &app));
        let other = level("other");
        let read = read.sharing(Some(&other)).sharing(None);
        assert!(read == made && !shares(&read, &other), "another owner");
        let read = read.sharing(Some(&app));
        assert!(read == made && shares(&read, &app));
    }

    #[test]
    fn a_mark_of_a_pod_without_a_valid_uid_has_no_owner_and_is_a_mark() {
        let content = r#"{"made":true,"pod":{"namespace":"n","name":"p","uid":"../x"},"files":{}}"#;
        let mark = Mark::parse(content).unwrap();
        assert!(mark.made);
        assert_eq!(mark.owner(&CgroupPath::root()), None);
    }
}
