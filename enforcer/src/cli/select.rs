//! Which pods a verb shows: by namespace and by label, in kubectl's words.

use std::str::FromStr;

use crate::model::Labels;

/// The arguments of verbs about pods.
#[derive(Clone, Debug, Default, clap::Args)]
// A verb's own arguments are a group of the same name.
#[group(skip)]
pub(super) struct Args {
    /// Show only pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Show the pods of all namespaces, as without --namespace
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Show only pods with these labels: app=web,tier!=cache, app in (a,b), !x;
    /// labels are those of a kubelet's pods
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
}

impl Args {
    /// Whether they leave out anything.
    pub(super) fn is_narrow(&self) -> bool {
        self.namespace.is_some() || self.selector.is_some()
    }

    /// Whether such a pod is shown. One whose labels are not known has none.
    pub(super) fn takes(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        let in_namespace = self.namespace.as_deref().is_none_or(|wanted| wanted == namespace);
        in_namespace && self.selector.as_ref().is_none_or(|selector| selector.takes(labels))
    }
}

/// A label selector: all its requirements hold.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Selector(Vec<Requirement>);

/// What must hold of one label.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Requirement {
    key: String,
    /// The values of which it has one, or none if negated; `None` asks only whether the label is there.
    values: Option<Vec<String>>,
    is_negated: bool,
}

impl Selector {
    fn takes(&self, labels: Option<&Labels>) -> bool {
        self.0.iter().all(|Requirement { key, values, is_negated }| {
            let own = labels.and_then(|labels| labels.iter().find(|(name, _)| name == key));
            let holds = own.is_some_and(|(_, own)| {
                values.as_ref().is_none_or(|values| values.iter().any(|value| value == own))
            });
            // As in Kubernetes, a pod without the label fulfils `!=` and `notin`.
            holds != *is_negated
        })
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let requirements = parts(text).into_iter().map(|part| part.trim().parse());
        requirements.collect::<Result<_, _>>().map(Self)
    }
}

/// The requirements, which commas separate outside of parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|character| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
    .collect()
}

impl FromStr for Requirement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of = |key: &str, values: Option<Vec<&str>>, is_negated| {
            let (key, values) = (key.trim(), values.map(|values| values.into_iter().map(str::trim)));
            let is_word =
                |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
            let values = values.map(|values| values.map(str::to_owned).collect::<Vec<_>>());
            if key.is_empty() || !is_word(key) || values.iter().flatten().any(|value| !is_word(value)) {
                return Err(format!(
                    "{text:?} is not a requirement: write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
                ));
            }
            Ok(Self { key: key.to_owned(), values, is_negated })
        };
        let set = |word: &str| {
            let (key, rest) = text.split_once(word)?;
            let values = rest.trim().strip_prefix('(')?.strip_suffix(')')?;
            Some((key, values.split(',').collect::<Vec<_>>()))
        };
        if let Some((key, values)) = set(" notin ") {
            return of(key, Some(values), true);
        }
        if let Some((key, values)) = set(" in ") {
            return of(key, Some(values), false);
        }
        for (sign, is_negated) in [("!=", true), ("==", false), ("=", false)] {
            if let Some((key, value)) = text.split_once(sign) {
                return of(key, Some(vec![value]), is_negated);
            }
        }
        match text.strip_prefix('!') {
            Some(key) => of(key, None, true),
            None => of(text, None, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_takes_what_kubectl_takes() {
        let labels: Labels = [("app", "web"), ("tier", "front"), ("x.io/team", "a-b")].into_iter().collect();
        let takes = |text: &str, labels: Option<&Labels>| text.parse::<Selector>().unwrap().takes(labels);
        for text in [
            "app=web",
            "app==web,tier=front",
            "tier!=back",
            "none!=x",
            "app in (db, web),tier notin (back,)",
            "app",
            "!none",
            "x.io/team=a-b",
        ] {
            assert!(takes(text, Some(&labels)), "{text}");
        }
        for text in
            ["app=db", "app=web,tier=back", "app!=web", "app in (db)", "app notin (web,db)", "!app", "none"]
        {
            assert!(!takes(text, Some(&labels)), "{text}");
        }
        // Labels that are not known are none.
        assert!(!takes("app=web", None) && takes("app!=web", None));
        for wrong in ["", "=x", "a b", "app in web", "a=b,,c=d", "a=(b)", "\u{1b}[2J"] {
            assert!(wrong.parse::<Selector>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_namespace_and_a_selector_both_hold() {
        let labels: Labels = [("app", "web")].into_iter().collect();
        let args = Args {
            namespace: Some("a".into()),
            all_namespaces: false,
            selector: Some("app=web".parse().unwrap()),
        };
        assert!(args.takes("a", Some(&labels)) && args.is_narrow());
        assert!(!args.takes("b", Some(&labels)) && !args.takes("a", None));
        assert!(Args::default().takes("a", None) && !Args::default().is_narrow());
    }
}
