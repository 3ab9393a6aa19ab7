//! Reads the pools that add `hugepages-<size>` to the node's capacity.

use std::{fs, io, path::Path};

use crate::model::{Quantity, ResourceList, ResourceName};

/// The kernel's pools of huge pages, a folder for each size.
pub(super) const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The pools of huge pages in `folder`, as the node's resources `hugepages-<size>`.
///
/// An empty pool counts only if its use can be limited: then pods that did not request its pages get none.
pub(super) fn read(folder: &Path, has_controller: bool) -> io::Result<ResourceList> {
    let mut pools = ResourceList::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        // A kernel without huge pages.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(pools),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let Some(page_bytes) = entry.file_name().to_str().and_then(page_bytes) else { continue };
        let text = fs::read_to_string(entry.path().join("nr_hugepages"))?;
        let pages: u64 = text.trim_ascii().parse().map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("nr_hugepages: {text:?}: {error}"))
        })?;
        if pages > 0 || has_controller {
            let name = format!("hugepages-{}", Quantity::from_units(page_bytes).binary_si());
            let pool = Quantity::from_units(page_bytes.saturating_mul(pages));
            pools.insert(ResourceName::new(&name), pool);
        }
    }
    Ok(pools)
}

/// The size in `hugepages-2048kB`.
fn page_bytes(folder: &str) -> Option<u64> {
    let kib: u64 = folder.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(pools: &[(&str, &str)]) -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        for (folder, pages) in pools {
            let folder = temp.path().join(folder);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("nr_hugepages"), pages).unwrap();
        }
        temp
    }

    fn shown(list: &ResourceList) -> Vec<String> {
        list.iter().map(|(name, amount)| format!("{}={}", name.as_str(), amount.units())).collect()
    }

    #[test]
    fn pools_are_resources() {
        let temp =
            pools(&[("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "0\n"), ("hugepages-64kB", "1\n")]);
        fs::create_dir(temp.path().join("something")).unwrap();
        assert_eq!(
            shown(&read(temp.path(), true).unwrap()),
            ["hugepages-1Gi=0", "hugepages-2Mi=6291456", "hugepages-64Ki=65536"]
        );
        assert_eq!(
            shown(&read(temp.path(), false).unwrap()),
            ["hugepages-2Mi=6291456", "hugepages-64Ki=65536"]
        );
    }

    #[test]
    fn a_kernel_without_huge_pages_has_none_and_nonsense_is_reported() {
        assert_eq!(read(Path::new("/nonexistent"), true).unwrap(), ResourceList::new());
        let temp = pools(&[("hugepages-2048kB", "many\n")]);
        assert!(read(temp.path(), true).unwrap_err().to_string().contains("many"));
    }
}
