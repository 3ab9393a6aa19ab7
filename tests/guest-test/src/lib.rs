//! The attribute that makes a function a guest test and says, in a word, where it runs.
use proc_macro::{TokenStream, TokenTree};

/// What a test is about, and so where it runs.
const TIERS: [&str; 3] = ["kernel", "daemon", "systemd"];

/// Words that may follow the tier, in this order.
///
/// - `exclusive`: the test judges a rate or a latency, and never runs beside another such test.
/// - `repeats`: a soak runs it, with many more rounds.
const TRAITS: [&str; 2] = ["exclusive", "repeats"];

/// Makes a function a test of one tier.
///
/// - `kernel`: it is about what the kernel does, and runs on every kernel.
/// - `daemon`: it is about the daemon alone, and runs on one kernel.
/// - `systemd`: it is about systemd's units, and runs on one kernel with systemd as its init.
///
/// After the tier may stand `exclusive`, if the test judges a rate or a latency and never runs beside another such test, and
/// `repeats`, if a soak runs it with many more rounds.
///
/// These words end the test's name, so that they appear in the list of tests:
///
/// ```text
/// #[guest_test(kernel, exclusive)]
/// fn stalls_are_counted() {} // stalls_are_counted::kernel::exclusive
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

/// Modules of these names but for the last, which is a test that calls the function.
fn test(words: &str, name: &str) -> Result<String, String> {
    let words: Vec<&str> = words.split(',').map(str::trim).collect();
    let Some((last, modules)) = words.split_last().filter(|_| are_valid(&words)) else {
        return Err(format!(
            "`{}` is no tier; write one of {}, and after it {} where they hold, in this order",
            words.join(", "),
            TIERS.join(", "),
            TRAITS.join(", ")
        ));
    };
    let up = "super::".repeat(words.len());
    let test = format!("#[test] fn {last}() {{ {up}{name}() }}");
    let modules = modules.iter().rev().fold(test, |inner, word| format!("mod {word} {{ {inner} }}"));
    Ok(format!("#[cfg(test)] mod {name} {{ {modules} }}"))
}

/// One tier, then some of the traits in their order.
fn are_valid(words: &[&str]) -> bool {
    let Some((tier, traits)) = words.split_first() else { return false };
    let mut known = TRAITS.iter();
    TIERS.contains(tier) && traits.iter().all(|word| known.any(|one| one == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tests_name_ends_with_its_tier() {
        let shared = test("kernel", "kills").unwrap();
        assert_eq!(shared, "#[cfg(test)] mod kills { #[test] fn kernel() { super::kills() } }");
        let exclusive = test("daemon , exclusive", "shares").unwrap();
        assert!(
            exclusive.contains("mod shares { mod daemon { #[test] fn exclusive() { super::super::shares() }")
        );
        let both = test("kernel, exclusive, repeats", "shares").unwrap();
        assert!(
            both.contains(
                "mod kernel { mod exclusive { #[test] fn repeats() { super::super::super::shares()"
            )
        );
    }

    #[test]
    fn a_word_that_is_no_tier_is_refused_with_those_that_are() {
        for words in
            ["", "kernal", "exclusive", "kernel exclusive", "kernel, daemon", "kernel, repeats, exclusive"]
        {
            let refused = test(words, "kills").unwrap_err();
            assert!(refused.contains("kernel, daemon, systemd"), "{refused}");
        }
    }
}
