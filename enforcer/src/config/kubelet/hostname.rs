//! What the running kubelet calls this host: by its flag, or where it is a part of another program, by that program's.

use std::{fs::File, os::fd::OwnedFd, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::open;
use crate::config::effective::text_of;

/// Where K3s keeps its state, unless it is given another folder.
const K3S_DATA: &str = "/var/lib/rancher/k3s";

/// The certificate by which the kubelet in K3s is known to the API server, below that folder: K3s has it made anew with each
/// start.
const K3S_CERTIFICATE: &str = "agent/client-kubelet.crt";

/// What the user of a node's certificate begins with.
const NODE_USER: &[u8] = b"system:node:";

/// The tags of the two kinds of text that it may be written as (ASN.1).
const TEXT: [u8; 2] = [0x0c, 0x13];

/// What the running kubelet calls this host: its node has that name, unless a cloud provider gives it another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KubeletHostname {
    /// This, by its flag `--hostname-override`, or by what the program says that it is a part of.
    Overridden(String),
    /// The host's own name, in lower case: it has no such flag.
    Own,
    /// Not known: no kubelet runs, or it does not show its flags.
    Unknown,
}

/// By its flag, as upstream `GetHostname` (`pkg/util/node`) takes it: empty is not set, and only spaces are an error.
pub(super) fn of_flag(flag: Option<&str>) -> KubeletHostname {
    match flag.filter(|name| !name.is_empty()) {
        None => KubeletHostname::Own,
        Some(name) => named(name),
    }
}

/// K3s replaces its arguments and its environment by a title; where it does not, its flag comes before its certificate, which
/// may be one of an earlier start.
pub(super) fn of_k3s(
    arguments: Option<&[String]>,
    environment: &[String],
    root: &OwnedFd,
) -> KubeletHostname {
    let variable = |name: &str| {
        let value = environment.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.filter(|value| !value.is_empty())
    };
    let arguments = arguments.unwrap_or_default();
    // With it, the name ends in a number of the machine.
    let has_id = arguments.iter().any(|word| word == "--with-node-id" || word == "--with-node-id=true");
    if let Some(name) = value(arguments, &["--node-name"]).filter(|_| !has_id) {
        return named(name);
    }
    let data =
        value(arguments, &["--data-dir", "-d"]).or_else(|| variable("K3S_DATA_DIR")).unwrap_or(K3S_DATA);
    let path = Path::new(data).join(K3S_CERTIFICATE);
    let certified = open(root, &path)
        .and_then(|file| Ok(certified(&text_of(&path.display().to_string(), File::from(file))?)));
    match (certified, variable("K3S_NODE_NAME")) {
        (Ok(Some(name)), _) => named(&name),
        (_, Some(name)) if !has_id => named(name),
        (Ok(None), _) => KubeletHostname::Unknown,
        (Err(error), _) => {
            tracing::debug!("k3s does not say what it calls its host: {error}");
            KubeletHostname::Unknown
        }
    }
}

fn named(name: &str) -> KubeletHostname {
    match name.trim() {
        "" => KubeletHostname::Unknown,
        name => KubeletHostname::Overridden(name.to_lowercase()),
    }
}

/// The value of the last flag of one of those names.
pub(super) fn value<'a>(arguments: &'a [String], names: &[&str]) -> Option<&'a str> {
    let at = |place: usize| arguments.get(place).map(String::as_str);
    let of = |(place, word): (usize, &'a String)| match word.split_once('=') {
        Some((name, value)) => names.contains(&name).then_some(value),
        None => at(place + 1).filter(|_| names.contains(&word.as_str())),
    };
    arguments.iter().enumerate().rev().find_map(of)
}

/// The node whose certificate is the first in this PEM text: its subject is a text with its length before it.
fn certified(pem: &str) -> Option<String> {
    let (_, rest) = pem.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let bytes = BASE64_STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).ok()?;
    let begin = bytes.windows(NODE_USER.len()).position(|window| window == NODE_USER)?;
    let [tag, length] = *bytes.get(begin.checked_sub(2)?..begin)? else { return None };
    // A longer text has a longer length.
    if !TEXT.contains(&tag) || length >= 0x80 {
        return None;
    }
    let name = bytes.get(begin + NODE_USER.len()..begin + usize::from(length))?;
    str::from_utf8(name).ok().map(str::to_owned)
}
