//! What `kubectl top pods` prints: a table of text, rounded to mebibytes.

use anyhow::{Context as _, bail};

use super::{Usages, of_quantity};

/// The column of memory.
const MEMORY: &str = "MEMORY(bytes)";

/// Reads the table, also with `--containers`, `-A` and `--sum`.
pub(super) fn read(text: &str) -> anyhow::Result<Usages> {
    let mut lines = (1_usize..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((first, header)) = lines.next() else { bail!("it is empty") };
    let header: Vec<_> = header.split_whitespace().collect();
    let column = |name: &str| header.iter().position(|column| *column == name);
    let (Some(name), Some(memory)) = (column("POD").or(column("NAME")), column(MEMORY)) else {
        bail!(
            "line {first} is neither JSON nor the heading that `kubectl top pods` prints, which has NAME and {MEMORY}: \
             leave --no-headers out"
        );
    };
    let (namespace, has_containers) = (column("NAMESPACE"), column("POD").is_some());
    let mut usages = Usages::default();
    for (number, line) in lines {
        let cells: Vec<_> = line.split_whitespace().collect();
        // The sum of all.
        if cells.iter().all(|cell| cell.bytes().all(|byte| byte == b'_')) {
            break;
        }
        let cell = |place: usize| cells.get(place).copied().unwrap_or_default();
        if cells.len() != header.len() {
            bail!("line {number} has {} columns instead of {}", cells.len(), header.len());
        }
        let bytes = of_quantity(cell(memory)).with_context(|| format!("line {number}"))?;
        let namespace = namespace.map(cell);
        let is_new = usages.add(namespace, cell(name), Some(bytes), None);
        if !is_new && !has_containers {
            bail!("line {number}: pod {} is there already", cell(name));
        }
    }
    Ok(usages)
}
