//! Messages of the guest's init: one line each, as `tests/programs/guest-init` writes them.
use anyhow::{Context as _, bail};

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The guest is prepared; its kernel's release.
    Ready(String),
    /// A step of the preparation failed.
    Warning(String),
    /// The script ended.
    Exit { status: u8, out_bytes: u64, err_bytes: u64 },
}

impl std::str::FromStr for Report {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "ready" => Ok(Self::Ready(rest.to_owned())),
            "warn" => Ok(Self::Warning(rest.to_owned())),
            "exit" => {
                let numbers: Vec<&str> = rest.split(' ').collect();
                let [status, out_bytes, err_bytes] = numbers.as_slice() else {
                    bail!("the guest's init reported {line:?}");
                };
                let context = || format!("the guest's init reported {line:?}");
                Ok(Self::Exit {
                    status: status.parse().with_context(context)?,
                    out_bytes: out_bytes.parse().with_context(context)?,
                    err_bytes: err_bytes.parse().with_context(context)?,
                })
            }
            _ => bail!("the guest's init reported {line:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages() {
        assert_eq!("ready 6.1.0".parse::<Report>().unwrap(), Report::Ready("6.1.0".into()));
        let exit = Report::Exit { status: 137, out_bytes: 5_000_000, err_bytes: 0 };
        assert_eq!("exit 137 5000000 0".parse::<Report>().unwrap(), exit);
        for wrong in ["", "exit", "exit 300 0 0", "exit 1 2", "done"] {
            assert!(wrong.parse::<Report>().is_err(), "{wrong}");
        }
    }
}
