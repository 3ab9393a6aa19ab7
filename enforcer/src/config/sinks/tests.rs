use crate::config::{Config, Error};

const HEAD: &str = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";

fn problems(text: &str) -> Vec<String> {
    match Config::parse("c.yaml", &format!("{HEAD}{text}")) {
        Err(Error::Invalid { problems }) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sinks_are_read() {
    let text = format!(
        "{HEAD}sinks:\n  journald: {{enabled: true, types: [oom.incident, dev.enforcer.eviction.decided]}}\n  webhook:\n  \
         - name: pager\n    url: https://events.example.com/a?b=c\n    secretFile: /etc/enforcer/pager.secret\n    \
         batch: {{maxEvents: 10, maxBytes: 64Ki}}\n    timeout: 3s\n    handshake: true\n  - {{name: b, url: \"http://b\"}}\n"
    );
    let sinks = Config::parse("c.yaml", &text).unwrap().sinks;
    assert!(sinks.journald.enabled);
    assert_eq!(sinks.journald.types.len(), 2);
    let pager = &sinks.webhooks[0];
    assert_eq!((pager.timeout_ms, pager.connect_timeout_ms, pager.handshake), (3_000, 5_000, true));
    assert_eq!(pager.batch.unwrap().max_bytes, 64 << 10);
    assert_eq!(pager.url.to_string(), "https://events.example.com/a?b=c");
    assert_eq!((sinks.webhooks[1].batch, sinks.webhooks[1].timeout_ms), (None, 10_000));
}

#[test]
fn what_is_wrong_is_reported_with_its_place() {
    let reported = problems(
        "sinks:\n  syslog: true\n  journald:\n    enabled: 1\n    types: [oom]\n  webhook:\n  - name: Pager\n    \
         url: http://user:hunter2@a/\n    timeout: 1h\n    batch: {maxEvents: 0, maxBytes: 1Gi, size: 1}\n    secretFile: s\n  \
         - url: http://a/\n    tokenFile: /t\n    caFile: /c\n  - name: b\n    types: all\n  - {name: b, url: \"https://b\"}\n  - x\n",
    );
    let starts = [
        "c.yaml:4: sinks.syslog: unknown field",
        "c.yaml:6: sinks.journald.enabled: expected true or false",
        "c.yaml:7: sinks.journald.types[0]: \"oom\" is not a type",
        "c.yaml:9: sinks.webhook[0].name: \"Pager\" is not a name",
        "c.yaml:10: sinks.webhook[0].url: is not the url",
        "c.yaml:11: sinks.webhook[0].timeout: \"1h\" is not a timeout",
        "c.yaml:12: sinks.webhook[0].batch.maxEvents: \"0\"",
        "c.yaml:12: sinks.webhook[0].batch.maxBytes: \"1Gi\"",
        "c.yaml:12: sinks.webhook[0].batch.size: unknown field",
        "c.yaml:13: sinks.webhook[0].secretFile: \"s\" is not an absolute path",
        "c.yaml:14: sinks.webhook[1].name: missing",
        "c.yaml:14: sinks.webhook[1].tokenFile: could be read",
        "c.yaml:14: sinks.webhook[1].caFile: has no use",
        "c.yaml:17: sinks.webhook[2].url: missing",
        "c.yaml:18: sinks.webhook[2].types: expected a list",
        "c.yaml:19: sinks.webhook[3].name: \"b\" is another webhook's",
        "c.yaml:20: sinks.webhook[4]: expected a mapping",
    ];
    for start in starts {
        assert!(reported.iter().any(|problem| problem.starts_with(start)), "{start} is not in {reported:#?}");
    }
    assert_eq!(reported.len(), starts.len(), "{reported:#?}");
    assert!(!reported.concat().contains("hunter2"), "a password is repeated");
}

#[test]
fn there_are_only_so_many_webhooks() {
    let webhooks: Vec<_> =
        (0..9).map(|index| format!("  - {{name: w{index}, url: \"http://h\"}}\n")).collect();
    let reported = problems(&format!("sinks:\n  webhook:\n{}", webhooks.concat()));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("sinks.webhook[8]: there may be 8"), "{reported:?}");
}
