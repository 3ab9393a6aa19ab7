//! What packages install: files and folders by path, each with its mode.
use std::{collections::BTreeMap, path::Path};

/// One file or folder; all belong to root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A folder that anyone may enter.
    Folder,
    /// A file.
    File {
        bytes: Vec<u8>,
        mode: u32,
        /// Whether it is the administrator's to change: packages keep the changed one.
        is_configuration: bool,
    },
}

/// Files and folders by path, without a slash in front. The order is that of bytes, so a folder comes before what is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree(BTreeMap<String, Node>);

impl Tree {
    /// A file that anyone may read, and the folders above it.
    pub(crate) fn file(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.put(path.into(), Node::File { bytes: bytes.into(), mode: 0o644, is_configuration: false });
    }

    /// The same, and anyone may run it.
    pub(crate) fn program(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.put(path.into(), Node::File { bytes: bytes.into(), mode: 0o755, is_configuration: false });
    }

    /// A file that the administrator changes.
    pub(crate) fn configuration(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.put(path.into(), Node::File { bytes: bytes.into(), mode: 0o644, is_configuration: true });
    }

    /// An empty folder.
    pub(crate) fn folder(&mut self, path: impl Into<String>) {
        self.put(path.into(), Node::Folder);
    }

    /// Adds everything of another tree.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.extend(other.0.iter().map(|(path, node)| (path.clone(), node.clone())));
    }

    fn put(&mut self, path: String, node: Node) {
        let above = Path::new(&path).ancestors().skip(1).filter_map(Path::to_str);
        for folder in above.filter(|folder| !folder.is_empty()) {
            self.0.entry(folder.to_owned()).or_insert(Node::Folder);
        }
        self.0.insert(path, node);
    }

    /// Everything, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// The bytes of all files together.
    pub(crate) fn size(&self) -> usize {
        self.iter().map(|(_, node)| if let Node::File { bytes, .. } = node { bytes.len() } else { 0 }).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_before_what_is_in_it() {
        let mut tree = Tree::default();
        tree.program("usr/bin/a", "1");
        tree.file("usr-local", "22");
        tree.folder("etc/a/b");
        let paths: Vec<_> = tree.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["etc", "etc/a", "etc/a/b", "usr", "usr-local", "usr/bin", "usr/bin/a"]);
        assert_eq!(tree.size(), 3);
    }
}
