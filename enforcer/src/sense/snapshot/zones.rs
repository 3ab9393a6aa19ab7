//! Parses `/proc/zoneinfo`: free memory and the watermarks at which reclaim begins.

/// The most zones: of a machine with more memory nodes the rest is left out and counted.
const MAX_ZONES: usize = 64;

/// A kind of zone.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ZoneKind {
    /// `DMA`.
    Dma,
    /// `DMA32`.
    Dma32,
    /// `Normal`.
    Normal,
    /// `Movable`.
    Movable,
    /// Any other.
    Other,
}

/// A zone of memory, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Zone {
    /// The memory node (NUMA) that it belongs to.
    pub node: u32,
    /// Its kind.
    pub kind: ZoneKind,
    /// Free memory.
    pub free_bytes: u64,
    /// Allocations below this wait for reclaim.
    pub min_bytes: u64,
    /// kswapd wakes below this.
    pub low_bytes: u64,
    /// kswapd reclaims up to this.
    pub high_bytes: u64,
    /// Memory that the kernel allocates from.
    pub managed_bytes: u64,
}

/// All zones that hold memory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Zones {
    zones: Vec<Zone>,
    left_out: usize,
}

impl Zones {
    /// With room for all zones, so that reading allocates nothing.
    pub(super) fn with_room() -> Self {
        Self { zones: Vec::with_capacity(MAX_ZONES), left_out: 0 }
    }

    /// All zones.
    #[must_use]
    pub fn each(&self) -> &[Zone] {
        &self.zones
    }

    /// How many zones did not fit.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The sum of one of their amounts, in bytes.
    #[must_use]
    pub fn sum(&self, amount: impl Fn(&Zone) -> u64) -> u64 {
        self.zones.iter().map(amount).fold(0, u64::saturating_add)
    }

    /// Parses `/proc/zoneinfo`; false if a zone is incomplete. Zones without memory are left out.
    pub(super) fn read(&mut self, text: &[u8], page_bytes: u64) -> bool {
        self.zones.clear();
        self.left_out = 0;
        let Ok(text) = str::from_utf8(text) else { return false };
        let mut current: Option<Partial> = None;
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("Node ") {
                if current.take().is_some_and(|partial| !self.push(&partial, page_bytes)) {
                    return false;
                }
                let Some((node, kind)) = head.split_once(", zone") else { return false };
                let Ok(node) = node.trim().parse() else { return false };
                current = Some(Partial { node, kind: kind_of(kind.trim()), ..Partial::default() });
            } else if let Some(partial) = &mut current {
                partial.line(line);
            }
        }
        current.is_none_or(|partial| self.push(&partial, page_bytes)) && !self.zones.is_empty()
    }

    fn push(&mut self, partial: &Partial, page_bytes: u64) -> bool {
        let Some(managed) = partial.managed else { return false };
        if managed == 0 {
            return true;
        }
        let (Some(free), Some(min), Some(low), Some(high)) =
            (partial.free, partial.min, partial.low, partial.high)
        else {
            return false;
        };
        if self.zones.len() == MAX_ZONES {
            self.left_out += 1;
            return true;
        }
        let bytes = |pages: u64| pages.saturating_mul(page_bytes);
        self.zones.push(Zone {
            node: partial.node,
            kind: partial.kind,
            free_bytes: bytes(free),
            min_bytes: bytes(min),
            low_bytes: bytes(low),
            high_bytes: bytes(high),
            managed_bytes: bytes(managed),
        });
        true
    }
}

fn kind_of(name: &str) -> ZoneKind {
    match name {
        "DMA" => ZoneKind::Dma,
        "DMA32" => ZoneKind::Dma32,
        "Normal" => ZoneKind::Normal,
        "Movable" => ZoneKind::Movable,
        _ => ZoneKind::Other,
    }
}

/// A partly read zone, in pages.
struct Partial {
    node: u32,
    kind: ZoneKind,
    free: Option<u64>,
    min: Option<u64>,
    low: Option<u64>,
    high: Option<u64>,
    managed: Option<u64>,
}

impl Default for Partial {
    fn default() -> Self {
        Self { node: 0, kind: ZoneKind::Other, free: None, min: None, low: None, high: None, managed: None }
    }
}

impl Partial {
    /// The first value of each name counts.
    fn line(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let (name, value) = match (words.next(), words.next(), words.next()) {
            (Some("pages"), Some("free"), Some(value)) => ("free", value),
            (Some(name @ ("min" | "low" | "high" | "managed")), Some(value), None) => (name, value),
            _ => return,
        };
        let field = match name {
            "free" => &mut self.free,
            "min" => &mut self.min,
            "low" => &mut self.low,
            "high" => &mut self.high,
            _ => &mut self.managed,
        };
        if field.is_none() {
            *field = value.parse().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 5\n      nr_file_pages 9\n  pages free     3840\n        boost    0\n        min      22\n        low      27\n        high     32\n        spanned  4095\n        present  3998\n        managed  3840\n        cma      0\n  pagesets\n    cpu: 0\n              count:    0\n              high: 14\n              batch: 1\nNode 0, zone    DMA32\n  pages free     400000\n        min      2799\n        low      3498\n        high     4197\n        managed  500000\nNode 0, zone  Movable\n  pages free     0\n        min      32\n        low      32\n        high     32\n        managed  0\n";

    #[test]
    fn zones_with_memory_are_reported_in_bytes() {
        let mut zones = Zones::with_room();
        assert!(zones.read(TEXT.as_bytes(), 4096));
        let kinds: Vec<_> = zones.each().iter().map(|zone| zone.kind).collect();
        assert_eq!(kinds, [ZoneKind::Dma, ZoneKind::Dma32]);
        assert_eq!(zones.sum(|zone| zone.high_bytes), (32 + 4_197) * 4_096);
        assert_eq!(zones.sum(|zone| zone.free_bytes), 403_840 * 4_096);
        assert_eq!((zones.each().len(), zones.left_out()), (2, 0));
        // Read again into the same room.
        assert!(zones.read(TEXT.as_bytes(), 4096));
        assert_eq!(zones.each().len(), 2);
    }

    #[test]
    fn a_torn_text_is_no_reading() {
        for end in [TEXT.find("managed  5").unwrap(), TEXT.find("low      3498").unwrap(), 0] {
            assert!(!Zones::with_room().read(&TEXT.as_bytes()[..end], 4096), "{end}");
        }
        assert!(!Zones::with_room().read(b"Node x, zone DMA\n", 4096));
    }

    #[test]
    fn no_more_than_there_is_room_for() {
        let mut zones = Zones::with_room();
        let zone =
            |node| format!("Node {node}, zone Normal\n  pages free 1\n min 1\n low 2\n high 3\n managed 9\n");
        let text: String = (0..70).map(zone).collect();
        assert!(zones.read(text.as_bytes(), 1));
        assert_eq!((zones.each().len(), zones.left_out()), (64, 6));
        assert_eq!(zones.zones.capacity(), 64);
    }
}
