//! The attribute that makes a function a guest test and says, in a word, where it runs.
use proc_macro::{TokenStream, TokenTree};

/// What a test is about, and so where it runs.
const TIERS: [&str; 11] = [
    "kernel",
    "daemon",
    "systemd",
    "debian",
    "kube",
    "kube_by_hand",
    "kube_current",
    "exclusive",
    "without_memory",
    "without_pids",
    "numa",
];

/// May follow the tier: a soak runs the test, with many more rounds.
const REPEATS: &str = "repeats";

/// Makes a function a test of one tier.
///
/// - `kernel`: it is about what the kernel does, and runs on every kernel.
/// - `daemon`: it is about the daemon alone, and runs on one kernel.
/// - `systemd`: it is about systemd's units, and runs on one kernel with systemd as its init.
/// - `debian`: it is about our package in each Debian release, by hand.
/// - `kube`: it is about a kubelet and an API server, and runs on one kernel on a Kubernetes node.
/// - `kube_by_hand`: the same, and takes so long that it is not in every run.
/// - `kube_current`: the same on a node of a newer release, by hand.
/// - `exclusive`: it judges shares or limits of the processor, and runs on one kernel, in a guest that has the machine to
///   itself.
/// - `without_memory`: it is about a kernel without the memory controller.
/// - `without_pids`: the same without the controllers cpuset, hugetlb and pids.
/// - `numa`: it is about a machine of two sockets with two cores of two threads each, and runs on one kernel.
///
/// After the tier may stand `repeats`, if a soak runs the test with many more rounds.
///
/// These words end the test's name, so that they appear in the list of tests:
///
/// ```text
/// #[guest_test(kernel, repeats)]
/// fn kills_are_seen() {} // kills_are_seen::kernel::repeats
/// ```
#[proc_macro_attribute]
pub fn guest_test(words: TokenStream, function: TokenStream) -> TokenStream {
    let test = name(&function).and_then(|name| test(&words.to_string(), &name));
    let (attribute, test) = match &test {
        // The function is called by the test alone.
        Ok(test) => ("#[cfg(test)]", test.clone()),
        Err(problem) => ("", format!("::core::compile_error!({problem:?});")),
    };
    let parsed = [attribute, test.as_str()].map(|text| text.parse::<TokenStream>().unwrap_or_default());
    let [attribute, test] = parsed;
    attribute.into_iter().chain(function).chain(test).collect()
}

/// The identifier after `fn`.
fn name(function: &TokenStream) -> Result<String, String> {
    let mut tokens = function.clone().into_iter();
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "fn");
    match (tokens.find(is_fn), tokens.next()) {
        (Some(_), Some(TokenTree::Ident(name))) => Ok(name.to_string()),
        _ => Err("guest_test stands before a function".to_owned()),
    }
}

/// The module whose one test calls the function.
fn test(words: &str, name: &str) -> Result<String, String> {
    let words: Vec<&str> = words.split(',').map(str::trim).collect();
    match words[..] {
        [tier] if TIERS.contains(&tier) => {
            Ok(format!("#[cfg(test)] mod {name} {{ #[test] fn {tier}() {{ super::{name}() }} }}"))
        }
        [tier, REPEATS] if TIERS.contains(&tier) => Ok(format!(
            "#[cfg(test)] mod {name} {{ mod {tier} {{ #[test] fn {REPEATS}() {{ super::super::{name}() }} }} }}"
        )),
        _ => Err(format!(
            "`{}` is no tier; write one of {}, followed by `, {REPEATS}` if a soak repeats the test",
            words.join(", "),
            TIERS.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tests_name_ends_with_its_tier() {
        let shared = test("kernel", "kills").unwrap();
        assert_eq!(shared, "#[cfg(test)] mod kills { #[test] fn kernel() { super::kills() } }");
        let repeated = test("daemon , repeats", "restarts").unwrap();
        assert!(
            repeated
                .contains("mod restarts { mod daemon { #[test] fn repeats() { super::super::restarts() }")
        );
    }

    #[test]
    fn a_word_that_is_no_tier_is_refused_with_those_that_are() {
        for words in ["", "kernal", "repeats", "kernel repeats", "kernel, daemon", "kernel, repeats, daemon"]
        {
            let refused = test(words, "kills").unwrap_err();
            assert!(refused.contains("kernel, daemon, systemd, debian, kube"), "{refused}");
        }
    }
}
