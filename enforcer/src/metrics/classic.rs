//! The page in the classic text format of Prometheus (version 0.0.4), from the same page in `OpenMetrics`.

use std::fmt::{self, Write as _};

/// Rewrites the heads of families: in the classic format they have the names of their rows, there are no units, and an
/// info is a gauge. Rows are the same.
pub(super) fn classic(page: &str) -> Result<String, fmt::Error> {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    // `OpenMetrics` has the help before or after the type, and the suffix depends on the type.
    let mut help: Option<(&str, &str)> = None;
    for line in page.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').ok_or(fmt::Error)?;
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take_if(|(of, _)| *of == name) {
                // The classic format escapes no quotation marks there.
                writeln!(text, "# HELP {name}{suffix} {}", help.replace("\\\"", "\""))?;
            }
            writeln!(text, "# TYPE {name}{suffix} {kind}")?;
        } else if !line.starts_with('#') {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::classic;

    #[test]
    fn heads_have_the_names_of_their_rows() {
        let page = "# HELP a_bytes A \\\"thing\\\".\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{b=\"c\"} 1\n\
                    # HELP d D.\n# TYPE d info\nd_info{e=\"f\"} 1\n# HELP g G.\n# TYPE g histogram\ng_bucket{le=\"+Inf\"} 2\n\
                    g_sum 1.5\ng_count 2\n# HELP h H.\n# TYPE h gauge\n# EOF\n";
        let expected = "# HELP a_bytes_total A \"thing\".\n# TYPE a_bytes_total counter\na_bytes_total{b=\"c\"} 1\n\
                        # HELP d_info D.\n# TYPE d_info gauge\nd_info{e=\"f\"} 1\n# HELP g G.\n# TYPE g histogram\n\
                        g_bucket{le=\"+Inf\"} 2\ng_sum 1.5\ng_count 2\n# HELP h H.\n# TYPE h gauge\n";
        assert_eq!(classic(page).unwrap(), expected);
    }
}
