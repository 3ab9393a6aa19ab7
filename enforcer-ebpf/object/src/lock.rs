//! The packages of other projects that go into the object, as `Cargo.lock` names them.
use std::collections::BTreeSet;

/// What the programs and the records that they share with the daemon depend on.
const ROOTS: [&str; 3] = ["aya-ebpf", "aya-log-ebpf", "zerocopy"];

/// A line a package: name, version and checksum, of the roots and all that they depend on, in the order of the file.
pub(crate) fn packages(lock: &str) -> String {
    let blocks: Vec<Block<'_>> = lock.split("[[package]]").filter_map(Block::parse).collect();
    let mut wanted = BTreeSet::new();
    let mut to_visit: Vec<&str> = ROOTS.to_vec();
    while let Some(name) = to_visit.pop() {
        if wanted.insert(name) {
            let of_that_name = blocks.iter().filter(|block| block.name == name);
            to_visit.extend(of_that_name.flat_map(|block| block.dependencies.iter()));
        }
    }
    let line = |block: &Block<'_>| format!("{} {} {}\n", block.name, block.version, block.checksum);
    blocks.iter().filter(|block| wanted.contains(block.name)).map(line).collect()
}

struct Block<'a> {
    name: &'a str,
    version: &'a str,
    checksum: &'a str,
    /// By name alone: where there are several versions of one, all count.
    dependencies: Vec<&'a str>,
}

impl<'a> Block<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        let listed = text.lines().filter_map(|line| line.strip_prefix(" \"")?.strip_suffix("\","));
        let dependencies = listed.filter_map(|entry| entry.split(' ').next()).collect();
        Some(Self {
            name: value("name")?,
            version: value("version")?,
            checksum: value("checksum").unwrap_or_default(),
            dependencies,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::packages;

    const LOCK: &str = r#"version = 4

[[package]]
name = "aya"
version = "0.14.0"
checksum = "1"

[[package]]
name = "aya-ebpf"
version = "0.2.1"
checksum = "2"
dependencies = [
 "aya-ebpf-macros 0.2.0",
 "bindings",
]

[[package]]
name = "aya-ebpf-macros"
version = "0.2.0"
checksum = "3"

[[package]]
name = "bindings"
version = "0.1.0"

[[package]]
name = "zerocopy"
version = "0.8.1"
checksum = "4"
"#;

    #[test]
    fn packages_are_those_that_the_programs_depend_on() {
        let expected = "aya-ebpf 0.2.1 2\naya-ebpf-macros 0.2.0 3\nbindings 0.1.0 \nzerocopy 0.8.1 4\n";
        assert_eq!(packages(LOCK), expected);
    }
}
