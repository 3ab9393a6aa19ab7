//! What the installed unit stands in the way of: the service does not see every path that a shell sees.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    config::{Config, DEFAULT_PATH, FIELDS, Form, Scheduling},
    regular,
};

const UNIT: &str = "enforcer.service";

/// Where systemd looks for units and their drop-ins: the first with a file of that name wins, systemd.unit(5).
const FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// The most that is read of a unit or a drop-in.
const MAX_BYTES: u64 = 64 << 10;

/// How systemd writes that a directive is on.
const ON: [&str; 4] = ["yes", "true", "on", "1"];

const PROTECT_HOME: &str = "ProtectHome";

/// Directives, the folders that they hide from a service, and what it finds instead.
const HIDES: [(&str, &[&str], &str); 2] = [
    (PROTECT_HOME, &["/home", "/root", "/run/user"], "sees nothing there"),
    ("PrivateTmp", &["/tmp", "/var/tmp"], "has a /tmp and a /var/tmp of its own"),
];

/// The fields whose folders the daemon writes to; it only reads or runs what the others name.
const WRITTEN: [&str; 2] = ["stateDir", "runDir"];

/// What of a configuration the installed unit stands in the way of, each as a sentence.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let target = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    in_the_way(config, &installed(Path::new("/")), target)
}

/// The same for the text of a unit and its drop-ins. `target` is where a path leads through links.
fn in_the_way(config: &Config, unit: &str, target: impl Fn(&Path) -> PathBuf) -> Vec<String> {
    // The service would take a hidden one for missing, and have defaults.
    let own = (String::from("the configuration"), PathBuf::from(DEFAULT_PATH));
    let fields = FIELDS.iter().flat_map(|field| paths(field.name, field.form, &(field.show)(config)));
    let named: Vec<_> = [own].into_iter().chain(fields).collect();
    let mut notes = Vec::new();
    for (directive, folders, effect) in HIDES.into_iter().filter(|(directive, ..)| is_on(unit, directive)) {
        let is_hidden = |path: &Path| folders.iter().any(|folder| path.starts_with(folder));
        let hidden: Vec<_> = named
            .iter()
            .filter_map(|(field, path)| {
                let path = [path.clone(), target(path)].into_iter().find(|path| is_hidden(path))?;
                Some((field.as_str(), path))
            })
            .collect();
        if hidden.is_empty() {
            continue;
        }
        let is_written = hidden.iter().any(|(field, _)| WRITTEN.contains(field));
        let value = if directive == PROTECT_HOME && !is_written { "read-only" } else { "no" };
        let shown: Vec<_> =
            hidden.iter().map(|(field, path)| format!("{field} ({})", path.display())).collect();
        notes.push(format!(
            "{}: {UNIT} {effect} ({directive}=yes): use a path elsewhere, or {}",
            shown.join(", "),
            remedy(directive, value)
        ));
    }
    let realtime = "RestrictRealtime";
    if config.eviction_scheduling == Scheduling::RoundRobin && is_on(unit, realtime) {
        let remedy = remedy(realtime, "no");
        notes.push(format!("evictionScheduling: rr is refused to {UNIT} ({realtime}=yes): {remedy}"));
    }
    notes
}

fn remedy(directive: &str, value: &str) -> String {
    format!("write [Service] and {directive}={value} by systemctl edit enforcer")
}

/// Whether a directive is on: of several lines the last counts.
fn is_on(unit: &str, directive: &str) -> bool {
    let value = unit.lines().rev().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == directive).then_some(value.trim())
    });
    value.is_some_and(|value| ON.contains(&value))
}

/// The paths in a field's value, each with its field.
fn paths(field: &str, form: Form, value: &Value) -> Vec<(String, PathBuf)> {
    match form {
        Form::Path => {
            value.as_str().map(|path| (field.to_owned(), PathBuf::from(path))).into_iter().collect()
        }
        Form::Object(inner) => inner
            .iter()
            .filter_map(|(name, form)| Some(paths(&format!("{field}.{name}"), *form, value.get(*name)?)))
            .flatten()
            .collect(),
        Form::Objects(inner) => value
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .flat_map(|(index, value)| paths(&format!("{field}[{index}]"), Form::Object(inner), value))
            .collect(),
        _ => Vec::new(),
    }
}

/// The text of the unit and behind it those of its drop-ins, as systemd reads them; empty without a unit.
fn installed(root: &Path) -> String {
    let folders = FOLDERS.map(|folder| root.join(folder));
    // A masked one leads to /dev/null: it is no file to read, and those behind it do not count either.
    let unit = folders.iter().map(|folder| folder.join(UNIT)).find(|path| path.exists());
    let Some(mut text) = unit.and_then(|unit| read(&unit).ok()) else { return String::new() };
    let mut drop_ins = BTreeMap::new();
    for folder in folders {
        for entry in fs::read_dir(folder.join(format!("{UNIT}.d"))).into_iter().flatten().flatten() {
            drop_ins.entry(entry.file_name()).or_insert_with(|| entry.path());
        }
    }
    for path in drop_ins.values().filter(|path| path.extension().is_some_and(|end| end == "conf")) {
        text.push('\n');
        text.push_str(&read(path).unwrap_or_default());
    }
    text
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    regular::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const PACKAGED: &str = include_str!("../../../../packaging/systemd/enforcer.service");

    /// The notes about a configuration with these fields, on a host without links.
    fn noted(unit: &str, fields: &str) -> Vec<String> {
        in_the_way(&config(fields), unit, Path::to_owned)
    }

    fn config(fields: &str) -> Config {
        let head = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";
        Config::parse("c.yaml", &format!("{head}{fields}")).unwrap()
    }

    #[test]
    fn each_path_that_the_packaged_unit_hides_is_noted_with_its_field_and_the_line_that_shows_it() {
        let fields = "staticPodPath: /tmp/pods\nstateDir: /home/state\nkubeconfig: /root/.kube/config\n\
                      evictionScheduling: rr\nmetricsListen: 127.0.0.1:9464\n\
                      metricsTLS: {certFile: /run/user/0/c.pem, keyFile: /etc/k.pem}\npreKillHook: {path: /home/hook}\n\
                      sinks: {webhook: [{name: a, url: 'https://a.example/', secretFile: /var/tmp/secret}]}\n";
        assert_eq!(
            noted(PACKAGED, fields),
            [
                "stateDir (/home/state), metricsTLS.certFile (/run/user/0/c.pem), kubeconfig (/root/.kube/config), \
                 preKillHook.path (/home/hook): enforcer.service sees nothing there (ProtectHome=yes): use a path elsewhere, \
                 or write [Service] and ProtectHome=no by systemctl edit enforcer",
                "staticPodPath (/tmp/pods), sinks.webhook[0].secretFile (/var/tmp/secret): enforcer.service has a /tmp and \
                 a /var/tmp of its own (PrivateTmp=yes): use a path elsewhere, or write [Service] and PrivateTmp=no by \
                 systemctl edit enforcer",
                "evictionScheduling: rr is refused to enforcer.service (RestrictRealtime=yes): write [Service] and \
                 RestrictRealtime=no by systemctl edit enforcer",
            ]
        );
        assert!(noted("", fields).is_empty(), "no unit is installed");
        let others = "staticPodPath: /tmpfs/pods\nstateDir: /var/home\nkubeconfig: /rooted\n";
        for fields in ["", others] {
            assert!(noted(PACKAGED, fields).is_empty(), "{fields}");
        }
    }

    #[test]
    fn what_is_only_read_need_not_be_writable() {
        let of_home = |fields: &str| noted(PACKAGED, fields).concat();
        assert!(of_home("kubeconfig: /root/k\n").contains(" ProtectHome=read-only by "));
        assert!(of_home("kubeconfig: /root/k\nrunDir: /home/run\n").contains(" ProtectHome=no by "));
    }

    #[test]
    fn a_link_into_a_hidden_folder_is_noted_also_if_it_is_the_configuration_itself() {
        let target = |path: &Path| match path.to_str() {
            Some(DEFAULT_PATH) => PathBuf::from("/root/config.yaml"),
            Some("/etc/k") => PathBuf::from("/root/k"),
            _ => path.to_owned(),
        };
        let noted = in_the_way(&config("kubeconfig: /etc/k\n"), PACKAGED, target).concat();
        assert!(
            noted.starts_with("the configuration (/root/config.yaml), kubeconfig (/root/k): "),
            "{noted}"
        );
        // The service has another folder there, and so not the link.
        let noted = in_the_way(&config("kubeconfig: /tmp/k\n"), PACKAGED, |_| "/etc/k".into()).concat();
        assert!(noted.starts_with("kubeconfig (/tmp/k): "), "{noted}");
    }

    #[test]
    fn the_last_line_of_a_directive_counts() {
        for (drop_in, is_noted) in [
            ("", true),
            ("# ProtectHome=no\n", true),
            ("ProtectHome = yes\n", true),
            ("ProtectHome=no\nProtectHome=true\n", true),
            ("ProtectHome=no\n", false),
            ("ProtectHome=\n", false),
            // Whoever writes that has folders in mind that are bound there.
            ("ProtectHome=tmpfs\n", false),
            ("ProtectHome=read-only\n", false),
        ] {
            let unit = format!("{PACKAGED}\n[Service]\n{drop_in}");
            assert_eq!(!noted(&unit, "kubeconfig: /root/k\n").is_empty(), is_noted, "{drop_in}");
        }
    }

    #[test]
    fn a_unit_is_read_with_its_drop_ins_as_systemd_does() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("etc/systemd/system/enforcer.service.d/20-home.conf", "local");
        assert_eq!(installed(root), "", "there is no unit");
        write("usr/lib/systemd/system/enforcer.service", "packaged");
        write("usr/lib/systemd/system/enforcer.service.d/20-home.conf", "another of that name");
        write("run/systemd/system/enforcer.service.d/10-first.conf", "first");
        write("etc/systemd/system/enforcer.service.d/README", "read by people");
        assert_eq!(installed(root), "packaged\nfirst\nlocal");
        let own = root.join("etc/systemd/system/enforcer.service");
        fs::write(&own, "own").unwrap();
        assert_eq!(installed(root), "own\nfirst\nlocal");
        fs::remove_file(&own).unwrap();
        symlink("/dev/null", &own).unwrap();
        assert_eq!(installed(root), "", "it is masked");
    }
}
