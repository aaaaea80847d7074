use std::collections::BTreeSet;

use super::*;

fn asked(words: &[&str]) -> Result<Asked, String> {
    parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
}

#[track_caller]
fn taken(words: &[&str]) -> Flags {
    match asked(words) {
        Ok(Asked::Run(flags, _)) => *flags,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[track_caller]
fn warned(words: &[&str]) -> Vec<String> {
    match asked(words) {
        Ok(Asked::Run(_, lines)) => lines,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// The names as `agent-sandbox-controller -h` prints them, with their defaults.
const PUBLISHED: &str = include_str!("published.txt");

#[test]
fn names_and_defaults_are_the_published_ones() {
    let published: BTreeSet<&str> = PUBLISHED.lines().map(|line| line.split(' ').next().unwrap()).collect();
    let own = ["egress-gateway", "egress-gateway-token-key-file", "egress-gateway-ca-file"];
    let names: BTreeSet<&str> = table::names().filter(|name| !own.contains(name)).collect();
    assert_eq!(names, published);
    for line in PUBLISHED.lines() {
        // A flag with its default has no effect.
        if let Some((name, default)) = line.split_once(' ') {
            let given = taken(&[&format!("--{name}={default}")]);
            let given = Flags { ignored: Vec::new(), ..given };
            assert_eq!(given, Flags::default(), "{line}");
        }
    }
}

#[test]
fn flag_has_every_form_of_go() {
    let extensions = Flags { extensions: true, ..Flags::default() };
    for words in [
        &["-extensions"][..],
        &["--extensions"],
        &["--extensions=true"],
        &["-extensions=T"],
        &["--extensions=false", "--extensions=1"],
        &["--extensions", "--"],
    ] {
        assert_eq!(taken(words), extensions, "{words:?}");
    }
    for words in [&["--kube-api-burst=20"][..], &["-kube-api-burst", "20"], &["--kube-api-burst", "0x14"]] {
        assert_eq!(taken(words).burst, 20, "{words:?}");
    }
    assert!(!taken(&["--leader-elect=false"]).leader_elect);
    assert_eq!(taken(&["--kubeconfig="]).kubeconfig, "");
    assert_eq!(taken(&["--kube-api-qps", "-1"]).qps, -1.0);
    assert_eq!(taken(&["--sandbox-write-behind-window=1.5s"]).write_behind, Duration::from_millis(1500));
    let flags = taken(&["--enable-webhook=false", "--webhook-port", "1", "--webhook-namespace=n"]);
    let webhook = &flags.webhook;
    assert_eq!((webhook.enabled, flags.webhook_port, webhook.namespace.as_str()), (false, 1, "n"));
    assert_eq!(asked(&["--extensions", "--version"]), Ok(Asked::Version));
    let Ok(Asked::Help(help)) = asked(&["-h"]) else { panic!("no help") };
    assert!(help.contains("--sandbox-warm-pool-max-batch-size") && help.contains("(default 300)"));
}

#[test]
fn mistakes_are_named_in_one_line() {
    for (words, named) in [
        (&["--no-such-flag"][..], "--no-such-flag: there is no such flag"),
        (&["--extensions", "true"], "\"true\": takes flags only"),
        (&["--", "x"], "\"x\": takes flags only"),
        (&["---extensions"], "---extensions: not a flag"),
        (&["--extensions=maybe"], "--extensions=maybe: must be true or false"),
        (&["--kubeconfig"], "--kubeconfig: needs a value"),
        (&["--webhook-port=https"], "--webhook-port=https: must be a whole number"),
        (&["--webhook-port=70000"], "--webhook-port=70000: must be a port"),
        (&["--kube-api-qps=fast"], "--kube-api-qps=fast: must be a number"),
        (&["--sandbox-concurrent-workers=0"], "--sandbox-concurrent-workers=0: must be greater than 0"),
        (
            &["--sandbox-claim-concurrent-workers=-1"],
            "--sandbox-claim-concurrent-workers=-1: must be greater",
        ),
        (&["--sandbox-warm-pool-concurrent-workers=0"], "--sandbox-warm-pool-concurrent-workers=0"),
        (&["--sandbox-warm-pool-max-batch-size=0"], "--sandbox-warm-pool-max-batch-size=0"),
        (&["--kube-api-burst=0"], "--kube-api-burst=0"),
        (&["--api-connections=0"], "--api-connections=0"),
        (
            &["--sandbox-warm-pool-max-refill-rate=-1"],
            "--sandbox-warm-pool-max-refill-rate=-1: must be finite",
        ),
        (&["--sandbox-warm-pool-max-refill-rate=inf"], "--sandbox-warm-pool-max-refill-rate=inf"),
        (&["--sandbox-warm-pool-readiness-grace-period=0"], "--sandbox-warm-pool-readiness-grace-period=0"),
        (&["--sandbox-warm-pool-readiness-grace-period=5"], "such as 5m"),
        (&["--sandbox-warm-pool-unschedulable-recheck-interval=0s"], "recheck-interval=0: must be greater"),
        (
            &["--sandbox-write-behind-window=-1s"],
            "--sandbox-write-behind-window=-1s: must be a duration of at least 0",
        ),
        (&["--webhook-cert-name= "], "--webhook-cert-name: must not be empty"),
        (&["--webhook-key-name="], "--webhook-key-name: must not be empty"),
        (&["--metrics-bind-address=8080"], "--metrics-bind-address=8080: must be HOST:PORT"),
        (&["--metrics-bind-address=:8081"], "port 8081 is that of --metrics-bind-address"),
        (&["--webhook-port=8080"], "--webhook-port: port 8080 is that of --metrics-bind-address"),
        (&["--zap-devel=perhaps"], "--zap-devel=perhaps: must be true or false"),
        (&["--zap-log-level"], "--zap-log-level: needs a value"),
    ] {
        let line = asked(words).unwrap_err();
        assert!(line.contains(named) && !line.contains('\n'), "{words:?}: {line}");
    }
}

#[test]
fn unusual_values_are_accepted_with_a_warning() {
    assert_eq!(warned(&[]), [""; 0]);
    let lines = warned(&["--enable-pprof", "--zap-log-level=debug", "--pprof-block-profile-rate", "1"]);
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("--enable-pprof, --zap-log-level, --pprof-block-profile-rate: "),
        "{lines:?}"
    );
    assert!(warned(&["--sandbox-concurrent-workers=1000"])[0].starts_with("1052 workers"));
    assert!(warned(&["--kube-api-qps=50"])[0].contains("--kube-api-burst=10"));
    assert!(warned(&["--webhook-cert-name=a.crt"])[0].contains("--webhook-cert-name"));
    assert_eq!(warned(&["--webhook-cert-name=a.crt", "--manage-webhook-certs=false"]), [""; 0]);
    for alike in
        [&["--metrics-bind-address=0"][..], &["--metrics-bind-address=", "--health-probe-bind-address=:8080"]]
    {
        assert_eq!(warned(alike), [""; 0]);
    }
}
