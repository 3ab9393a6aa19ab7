//! What the help of each verb says beside its options: examples, and which of the options for all verbs apply.

use super::Verb;

/// Of a verb that asks the daemon.
const ASKS: &[&str] = &["config", "kubelet_config", "no_config", "socket", "output"];
/// Of one that reads the state directory if the daemon is down.
const READS: &[&str] = &["config", "kubelet_config", "no_config", "socket", "output", "live"];

/// All verbs, as the help lists them; one below another is written behind it.
pub(super) const VERBS: &[Verb] = &[
    Verb {
        path: "run",
        globals: &["config", "kubelet_config", "no_color", "verbose"],
        examples: &[
            ("enforcer run", "as the configuration says"),
            ("enforcer run --mode dry-run", "decide and report, and change nothing"),
        ],
    },
    Verb {
        path: "status",
        globals: ASKS,
        examples: &[
            ("enforcer status", "the node on one screen"),
            ("enforcer -o json status", "for a program"),
        ],
    },
    Verb {
        path: "pods",
        globals: ASKS,
        examples: &[
            ("enforcer pods", "all pods"),
            ("enforcer -o wide pods -n default", "of a namespace, with whole names"),
        ],
    },
    Verb {
        path: "describe",
        globals: ASKS,
        examples: &[("enforcer describe default/web", "a pod, its containers and its newest events")],
    },
    Verb {
        path: "events",
        globals: &["config", "kubelet_config", "no_config", "socket", "output", "live", "no_color"],
        examples: &[
            ("enforcer events --since 2h", "of the last two hours"),
            ("enforcer events -f --type eviction.decided", "follow all evictions"),
            ("enforcer -o jsonl events --pod default/web", "of one pod, for a program"),
        ],
    },
    Verb {
        path: "why",
        globals: READS,
        examples: &[
            ("enforcer why", "the latest case"),
            ("enforcer why default/web", "the latest case of a pod"),
        ],
    },
    Verb {
        path: "next",
        globals: ASKS,
        examples: &[
            ("enforcer next", "the first ten, when memory runs short"),
            ("enforcer next --number 3 --signal pid.available", "when process ids run short"),
        ],
    },
    Verb { path: "headroom", globals: ASKS, examples: &[("enforcer -o json headroom", "for a program")] },
    Verb {
        path: "allocatable",
        globals: ASKS,
        examples: &[("enforcer allocatable", "a line for each resource")],
    },
    Verb {
        path: "plan",
        globals: &["config", "kubelet_config", "no_config", "socket", "output", "live", "verbose"],
        examples: &[
            ("enforcer plan -f pods/", "pods of a folder, on this machine"),
            ("enforcer plan -f web.yaml --capacity cpu=4,memory=8Gi", "on another machine"),
            ("kubectl get pods -o json | enforcer plan -f -", "pods of a cluster"),
            ("enforcer --live plan", "what would be written here now"),
        ],
    },
    Verb {
        path: "rank",
        globals: &["config", "kubelet_config", "no_config", "output"],
        examples: &[("enforcer rank -f pods/ --stats stats.json", "when memory runs short")],
    },
    Verb {
        path: "replay",
        globals: READS,
        examples: &[
            ("enforcer replay latest", "the newest decision"),
            ("enforcer replay latest --config other.yaml", "and under another policy"),
        ],
    },
    Verb {
        path: "report",
        globals: READS,
        examples: &[
            ("enforcer report", "of the last seven days"),
            ("enforcer report --since 24h -o json", "for a program"),
            ("enforcer report -o html > report.html", "a page to read, print or pass on"),
        ],
    },
    Verb {
        path: "top",
        globals: &["config", "kubelet_config", "no_config", "socket", "output", "no_color"],
        examples: &[
            ("enforcer top", "the live view"),
            ("enforcer top --batch --interval 10s", "plain tables, for a log"),
        ],
    },
    Verb {
        path: "what-if",
        globals: ASKS,
        examples: &[
            ("enforcer what-if --threshold 2Gi", "with another threshold"),
            ("enforcer what-if --add 4Gi --pod default/web", "if a pod used more"),
        ],
    },
    Verb {
        path: "protect",
        globals: ASKS,
        examples: &[
            ("enforcer protect default/db --for 1h --reason migration", "spare it for an hour"),
            ("enforcer protect default/db --end --reason done", "end it before its time"),
            ("enforcer protect --list", "all orders in force"),
        ],
    },
    Verb {
        path: "pause",
        globals: ASKS,
        examples: &[
            ("enforcer pause --for 15m --reason upgrade", "for a quarter of an hour"),
            ("enforcer pause --end --reason done", "resume"),
        ],
    },
    Verb {
        path: "evict",
        globals: ASKS,
        examples: &[
            ("enforcer evict default/web --reason leak --dry-run", "only what would be done"),
            ("enforcer evict default/web --reason leak", "now"),
        ],
    },
    Verb {
        path: "reserve",
        globals: ASKS,
        examples: &[(
            "enforcer reserve batch --memory 2Gi --cpu 1 --ttl 1h --reason nightly",
            "for another scheduler on this machine",
        )],
    },
    Verb {
        path: "unreserve",
        globals: ASKS,
        examples: &[("enforcer unreserve batch", "end it before its time")],
    },
    Verb {
        path: "reload",
        globals: ASKS,
        examples: &[
            ("enforcer config check && enforcer reload", "after an edit"),
            ("enforcer reload --arm", "and let every threshold evict from now on"),
        ],
    },
    Verb {
        path: "doctor",
        globals: &[
            "config",
            "kubelet_config",
            "no_config",
            "socket",
            "output",
            "live",
            "no_color",
            "verbose",
        ],
        examples: &[
            ("enforcer doctor", "what the daemon has found"),
            ("enforcer doctor --here -v", "what this process finds, with every alternative"),
        ],
    },
    Verb {
        path: "cleanup",
        globals: &["config", "kubelet_config", "no_config", "output"],
        examples: &[
            ("enforcer cleanup --dry-run", "only what would be given back"),
            ("enforcer cleanup --state", "after the last daemon, with its events"),
            ("enforcer cleanup --state --stay", "the same, in a pod"),
        ],
    },
    Verb { path: "config", globals: &["config", "kubelet_config", "no_config", "output"], examples: &[] },
    Verb {
        path: "config init",
        globals: &["config", "output"],
        examples: &[
            ("enforcer config init", "where the daemon reads it"),
            ("enforcer config init draft.yaml", "as a draft"),
            ("enforcer config init -", "only print it"),
        ],
    },
    Verb {
        path: "config check",
        globals: &["config", "kubelet_config", "no_config", "output"],
        examples: &[
            ("enforcer config check", "the file that the daemon reads"),
            ("enforcer config check draft.yaml", "a draft"),
        ],
    },
    Verb {
        path: "config effective",
        globals: READS,
        examples: &[
            ("enforcer config effective", "what the files say, and where"),
            ("enforcer config effective --live", "what the daemon runs with"),
            ("enforcer config effective -o yaml > whole.yaml", "as a file that can be used"),
        ],
    },
    Verb {
        path: "config schema",
        globals: &["output"],
        examples: &[("enforcer config schema > schema.json", "for an editor")],
    },
    Verb {
        path: "version",
        globals: READS,
        examples: &[("enforcer version", "this program, the daemon, and the kernel")],
    },
    Verb {
        path: "bugreport",
        globals: READS,
        examples: &[
            ("enforcer bugreport --dry-run", "only list what it would contain"),
            ("enforcer bugreport --file report.tar.gz", "into that file"),
        ],
    },
    Verb {
        path: "exec",
        globals: &["config", "kubelet_config", "no_config", "socket"],
        examples: &[
            ("enforcer exec default/web -- ./server --port 80", "in the pod's only container"),
            ("enforcer exec --restart always default/web/app -- ./server", "again when it ends"),
        ],
    },
    Verb {
        path: "completions",
        globals: &[],
        examples: &[
            ("enforcer completions bash > /etc/bash_completion.d/enforcer", "bash"),
            ("enforcer completions zsh > /usr/share/zsh/site-functions/_enforcer", "zsh"),
            ("enforcer completions fish > /etc/fish/completions/enforcer.fish", "fish"),
        ],
    },
    Verb {
        path: "man",
        globals: &[],
        examples: &[
            ("enforcer man | man -l -", "read the page"),
            ("enforcer man --dir /usr/local/share/man/man1", "install the pages of all verbs"),
        ],
    },
];
