//! A first configuration file for a machine: what matters is set and explained, and every other field is a comment with
//! its default.

use serde_json::Value;

use super::{API_VERSION, Config, FIELDS, Field, Form, KIND, MemoryAvailableSource};
use crate::{model::Quantity, render::human_bytes};

/// How wide comments are, in columns.
const WIDTH: usize = 100;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What of a machine its configuration depends on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Machine {
    /// CPUs in thousandths.
    pub cpu_milli: u64,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The swap in bytes.
    pub swap_bytes: u64,
    /// The largest number of tasks, if it is known.
    pub max_pids: Option<u64>,
    /// Whether systemd can make slices here.
    pub has_systemd: bool,
    /// Whether a kubelet owns the pods' cgroups.
    pub has_kubelet: bool,
}

/// A field that is set, and why to that value.
struct Setting {
    field: &'static str,
    why: Vec<String>,
    value: Shape,
}

/// How a value is written.
enum Shape {
    /// Behind its field.
    Word(&'static str),
    /// As lines below it.
    Entries(Vec<(&'static str, String)>),
}

/// The text of a configuration file that fits that machine.
#[must_use]
pub fn draft(machine: &Machine) -> String {
    let settings = settings(machine);
    let is_set = |field: &Field| settings.iter().any(|setting| setting.field == field.name);
    let others = FIELDS.iter().filter(|field| !is_set(field));
    let mut text = comment(&head(machine));
    text.push_str(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n"));
    for setting in &settings {
        text.push_str(&format!("\n{}{}", comment(&setting.why), setting.line()));
    }
    if machine.has_kubelet {
        text.push_str(&format!("\n{}", comment(&[beside_kubelet()])));
    }
    for field in others {
        let value = flow(&default(field, machine));
        let line = format!("#{}: {value}", field.name);
        text.push_str(&format!("\n{}{}\n", comment(&[help(field)]), line.trim_end()));
    }
    text
}

fn head(machine: &Machine) -> [String; 2] {
    let Machine { cpu_milli, memory_bytes, swap_bytes, max_pids, has_systemd, has_kubelet } = *machine;
    let swap = if swap_bytes == 0 { String::from("no swap") } else { human_bytes(swap_bytes) + " of swap" };
    let pids = max_pids.map(|most| format!(" at most {most} tasks,")).unwrap_or_default();
    let with = |name: &str, is_there: bool| format!("{} {name}", if is_there { "with" } else { "without" });
    [
        format!(
            "The configuration of enforcer, made by `enforcer config init` for a machine of {} CPUs, {} of memory, {swap},{pids} \
             {} and {}.",
            Quantity::from_milli(cpu_milli),
            human_bytes(memory_bytes),
            with("systemd", has_systemd),
            with("a kubelet", has_kubelet),
        ),
        String::from(
            "`enforcer config check` checks it, `enforcer reload` loads it, and `enforcer config effective` prints every value in \
             force. A line with # right before a field shows the field's default; without the # it is set.",
        ),
    ]
}

fn settings(machine: &Machine) -> Vec<Setting> {
    let mut settings = vec![mode()];
    if !machine.has_kubelet {
        settings.extend(machine.has_systemd.then(cgroup_driver));
        settings.extend([eviction_hard(machine), system_reserved(machine)]);
    }
    settings
}

fn mode() -> Setting {
    let why = "dry-run decides and reports, and changes nothing (observe does not even decide). Look at `enforcer next`, `enforcer headroom` and `enforcer events` \
               for a while. Then write enforce, and restart the daemon.";
    Setting { field: "mode", why: vec![why.to_owned()], value: Shape::Word("dry-run") }
}

fn cgroup_driver() -> Setting {
    let why = "systemd runs here and owns the cgroups, so it makes those of pods too: `systemctl status` and systemd-cgls show them.";
    Setting { field: "cgroupDriver", why: vec![why.to_owned()], value: Shape::Word("systemd") }
}

fn eviction_hard(machine: &Machine) -> Setting {
    let memory = human_bytes(machine.memory_bytes);
    let (bytes, memory) = hard_memory(machine.memory_bytes, &memory);
    let mut why = vec![
        String::from(
            "Pods are evicted at once while less than this is available. Only what is named here has a threshold.",
        ),
        memory,
    ];
    if machine.swap_bytes > 0 {
        why.push(String::from(
            "Swap does not count as available, and pods get none of it unless memorySwap, below, says so.",
        ));
    }
    let mut entries = vec![("memory.available", bytes)];
    if let Some(most) = machine.max_pids {
        why.push(format!(
            "pid.available: a tenth of the {most} tasks that there may be. Without one left nothing can be started, not even a \
             shell to look."
        ));
        entries.push(("pid.available", String::from("10%")));
    }
    Setting { field: "evictionHard", why, value: Shape::Entries(entries) }
}

/// The hard threshold of memory on a machine of that much, and why.
fn hard_memory(memory_bytes: u64, shown: &str) -> (String, String) {
    /// The kubelet's default.
    const LEAST: u64 = 100 * MIB;
    /// More than pods take in the milliseconds that an eviction lasts.
    const MOST: u64 = 2 * GIB;
    if memory_bytes < 10 * LEAST {
        let why = format!(
            "memory.available: a tenth of the {shown} of memory, as the kubelet's default of 100Mi is much for so small a machine."
        );
        return (whole_mib(memory_bytes / 10), why);
    }
    let why = format!(
        "memory.available: 1 % of the {shown} of memory, but 100Mi at least, which is the kubelet's default, and 2Gi at most, as \
         pods are evicted within milliseconds."
    );
    (whole_mib((memory_bytes / 100).clamp(LEAST, MOST)), why)
}

fn system_reserved(machine: &Machine) -> Setting {
    let Machine { cpu_milli, memory_bytes, .. } = *machine;
    let least = (memory_bytes / 4).min(256 * MIB);
    let memory = whole_mib((memory_bytes / 20).clamp(least, GIB));
    let cpu = Quantity::from_milli((cpu_milli / 20).clamp(100, 500)).to_string();
    let why = vec![
        String::from("Kept for the system's own services: all pods together are limited to the rest."),
        format!(
            "memory: 5 % of the {}, but 256Mi at least (of a smaller machine a quarter), and 1Gi at most. cpu: 5 %, from 100m to \
             500m. `reservation.exceeded` among the events says that the services use more.",
            human_bytes(memory_bytes)
        ),
    ];
    Setting { field: "systemReserved", why, value: Shape::Entries(vec![("cpu", cpu), ("memory", memory)]) }
}

/// Why nothing else is set there.
fn beside_kubelet() -> String {
    String::from(
        "A kubelet runs here, or has run since the machine was started. Thresholds are not set: as long as this file has none, \
         that of memory.available follows the kubelet's own and is above it, so that enforcer evicts first, and by the same \
         measure (docs/kubernetes-evictors.md). What is reserved and how cgroups are named is the kubelet's to say, too. \
         `enforcer doctor` shows both thresholds.",
    )
}

/// An amount in whole MiB, as in a file.
fn whole_mib(bytes: u64) -> String {
    Quantity::from_units((bytes / MIB).max(1) * MIB).binary_si().to_string()
}

impl Setting {
    fn line(&self) -> String {
        match &self.value {
            Shape::Word(word) => format!("{}: {word}\n", self.field),
            Shape::Entries(entries) => {
                let entries = entries.iter().map(|(name, value)| format!("  {name}: {value}\n"));
                format!("{}:\n{}", self.field, entries.collect::<String>())
            }
        }
    }
}

/// What a field is for, and the words that it takes, as a sentence.
fn help(field: &Field) -> String {
    let words = match field.form {
        Form::Choice(words) | Form::Words(words) => format!(" ({})", words.join(", ")),
        _ => String::new(),
    };
    let mut help = field.help.chars();
    let first = help.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}{words}.", help.as_str())
}

/// The value that the field has there if the file does not set it; null also where another process decides.
fn default(field: &Field, machine: &Machine) -> Value {
    let mut config = Config::default();
    if machine.has_kubelet {
        if ["evictionHard", "cgroupDriver"].contains(&field.name) {
            return Value::Null;
        }
        config.memory_available_source = MemoryAvailableSource::Kubelet;
    }
    (field.show)(&config)
}

/// A value on one line of YAML.
fn flow(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// Whether a text needs no quotes.
fn is_plain(text: &str) -> bool {
    text.starts_with(|first: char| first == '/' || first.is_ascii_alphanumeric())
        && text.chars().all(|one| one.is_ascii_alphanumeric() || "/.%_-".contains(one))
}

/// Paragraphs as comments, each in lines of their own.
fn comment(paragraphs: &[String]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in paragraphs {
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                lines.push(std::mem::replace(&mut line, String::from("#")));
            }
            line.push(' ');
            line.push_str(word);
        }
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine {
        cpu_milli: 4_000,
        memory_bytes: 16 * GIB,
        swap_bytes: 0,
        max_pids: Some(32_768),
        has_systemd: true,
        has_kubelet: false,
    };

    /// Each size with and without all that may be there.
    fn machines() -> impl Iterator<Item = Machine> {
        let sizes = [256 * MIB, 2 * GIB, 16 * GIB, 1_024 * GIB];
        sizes.into_iter().flat_map(|memory_bytes| {
            [false, true].into_iter().flat_map(move |has_kubelet| {
                [false, true].map(|other| Machine {
                    cpu_milli: memory_bytes / GIB * 250 + 1_000,
                    memory_bytes,
                    swap_bytes: if other { GIB } else { 0 },
                    max_pids: other.then_some(32_768),
                    has_systemd: other,
                    has_kubelet,
                })
            })
        })
    }

    fn parsed(text: &str) -> Config {
        Config::parse("c.yaml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// The fields of one configuration that differ in the other.
    fn different(one: &Config, other: &Config) -> Vec<&'static str> {
        let differs = |field: &&Field| (field.show)(one) != (field.show)(other);
        FIELDS.iter().filter(differs).map(|field| field.name).collect()
    }

    #[test]
    fn a_draft_is_the_default_but_for_what_it_sets() {
        for machine in machines() {
            let set = different(&parsed(&draft(&machine)), &Config::default());
            let expected: &[&str] = match (machine.has_kubelet, machine.has_systemd) {
                (true, _) => &[],
                (false, true) => &["evictionHard", "systemReserved", "cgroupDriver"],
                (false, false) => &["evictionHard", "systemReserved"],
            };
            assert_eq!(set, expected, "{machine:?}");
        }
    }

    #[test]
    fn a_draft_without_its_comment_signs_says_the_same() {
        for machine in machines() {
            let text = draft(&machine);
            let is_field = |line: &str| line.starts_with(|first: char| first.is_ascii_alphabetic());
            let bare: Vec<_> = text
                .lines()
                .map(|line| line.strip_prefix('#').filter(|line| is_field(line)).unwrap_or(line))
                .collect();
            let fields = bare.iter().filter(|line| is_field(line)).count();
            assert_eq!(fields, FIELDS.len() + 2, "each field once, and what the document is");
            let different = different(&parsed(&bare.join("\n")), &parsed(&text));
            let expected: &[&str] = if machine.has_kubelet { &["memoryAvailableSource"] } else { &[] };
            assert_eq!(different, expected, "beside a kubelet that is the default: {machine:?}");
        }
    }

    #[test]
    fn amounts_grow_with_the_machine() {
        for (memory_bytes, cpu_milli, memory, reserved, cpu) in [
            (256 * MIB, 1_000, "25Mi", "64Mi", "100m"),
            (999 * MIB, 1_000, "99Mi", "249Mi", "100m"),
            (GIB, 1_000, "100Mi", "256Mi", "100m"),
            (2 * GIB, 2_000, "100Mi", "256Mi", "100m"),
            (16 * GIB, 4_000, "163Mi", "819Mi", "200m"),
            (1_024 * GIB, 128_000, "2Gi", "1Gi", "500m"),
        ] {
            let text = draft(&Machine { cpu_milli, memory_bytes, ..MACHINE });
            let set = format!("\nevictionHard:\n  memory.available: {memory}\n  pid.available: 10%\n");
            assert!(text.contains(&set), "{set}\n{text}");
            let set = format!("\nsystemReserved:\n  cpu: {cpu}\n  memory: {reserved}\n");
            assert!(text.contains(&set), "{set}\n{text}");
        }
    }

    #[test]
    fn a_draft_says_what_was_found() {
        let text = draft(&Machine { swap_bytes: 2 * GIB, ..MACHINE });
        let said = text.replace("\n# ", " ");
        for part in [
            "a machine of 4 CPUs, 16Gi of memory, 2Gi of swap, at most 32768 tasks, with systemd and without a kubelet.",
            "Swap does not count as available",
            "1 % of the 16Gi of memory",
            "a tenth of the 32768 tasks",
            "Then write enforce, and restart the daemon.\nmode: dry-run\n",
        ] {
            assert!(said.contains(part), "{part}\n{text}");
        }
        let unknown = draft(&Machine { max_pids: None, ..MACHINE });
        assert!(!unknown.contains("  pid.available") && unknown.contains("no swap"), "{unknown}");
        let beside = draft(&Machine { has_kubelet: true, ..MACHINE });
        assert!(beside.contains("#evictionHard:\n") && beside.contains("# A kubelet runs here"), "{beside}");
        assert!(beside.contains("#memoryAvailableSource: kubelet\n"), "{beside}");
    }

    #[test]
    fn comments_are_wrapped() {
        for line in
            machines().flat_map(|machine| draft(&machine).lines().map(str::to_owned).collect::<Vec<_>>())
        {
            let is_comment = line.starts_with("# ");
            assert!(!is_comment || line.chars().count() <= WIDTH, "{line}");
            assert_eq!(line.trim_end(), line);
        }
    }

    #[test]
    fn what_may_be_misread_is_quoted() {
        let value = serde_json::json!({"a": ["x", "a b", "-1", "10%", ""], "b": 0.5, "c": null});
        assert_eq!(flow(&value), r#"{a: [x, "a b", "-1", 10%, ""], b: 0.5, c: }"#);
    }
}
