use proptest::prelude::*;

use super::*;
use crate::expression::Expression;
use crate::host::Host;
use crate::network::NetworkLevel;
use crate::request::{Call, Path};
use crate::rule::{EgressRule, Protocol, Tls};

fn decide<'a>(levels: &'a [Level], destination: &Destination) -> Verdict<'a> {
    super::decide(levels, destination, &Moment::default())
}

fn may_dial(
    levels: &[Level],
    destination: &Destination,
    address: IpAddr,
    own: &[IpAddr],
) -> Result<(), Forbidden> {
    super::may_dial(levels, destination, address, own, &Moment::default())
}

fn egress(json: &str) -> Egress {
    serde_json::from_str(json).unwrap()
}

fn level(authority: Authority, mode: Mode, egress: Option<Egress>) -> Level {
    Level { mode, ..Level::new(authority, format!("{authority:?}"), egress) }
}

fn decision(levels: &[Level], destination: &str) -> Decision {
    decide(levels, &destination.parse().unwrap()).decision
}

#[test]
fn rules_of_one_level() {
    let rules = egress(
        r#"{"rules": [
            {"name": "api", "hosts": ["api.example.com"]},
            {"name": "web", "hosts": ["**.example.org"], "plaintext": true},
            {"name": "db", "hosts": ["db.example.com"], "ports": [5432, "6000-6010"]},
            {"name": "net", "cidrs": ["192.0.2.0/24"], "ports": [443]},
            {"name": "not", "hosts": ["secret.example.org"], "ports": ["1-65535"], "decision": "Deny"}
        ]}"#,
    );
    let levels = [level(Authority::Namespace, Mode::Enforce, Some(rules))];
    for (destination, allowed) in [
        ("api.example.com", true),
        ("API.example.com.:443", true),
        ("api.example.com:80", false),
        ("x.example.org:80", true),
        ("x.example.org", false),
        ("secret.example.org:80", false),
        ("db.example.com:5432", true),
        ("db.example.com:6010", true),
        ("db.example.com", false),
        ("192.0.2.1:443", true),
        ("3221225985:443", true),
        ("192.0.3.1:443", false),
        ("[::ffff:192.0.2.1]:443", true),
        ("example.com", false),
    ] {
        let expected = if allowed { Decision::Allow } else { Decision::Deny };
        assert_eq!(decision(&levels, destination), expected, "{destination}");
    }
}

#[test]
fn strictest_level_wins_and_no_level_means_no_network() {
    let open = || Some(egress(r#"{"rules": [{"name": "a", "any": true}]}"#));
    let other = || Some(egress(r#"{"rules": [{"name": "b", "hosts": ["b.example.com"]}]}"#));
    let (cluster, claim) = (Authority::Cluster, Authority::Claim);
    let (enforce, observe) = (Mode::Enforce, Mode::Observe);
    for (levels, expected) in [
        (vec![], Decision::Deny),
        (vec![level(cluster, enforce, None)], Decision::Deny),
        (vec![level(cluster, enforce, open())], Decision::Allow),
        (vec![level(cluster, enforce, open()), level(claim, enforce, None)], Decision::Allow),
        (vec![level(cluster, enforce, open()), level(claim, enforce, other())], Decision::Deny),
        (vec![level(cluster, enforce, other()), level(claim, enforce, open())], Decision::Deny),
        (
            vec![level(cluster, enforce, open()), level(claim, enforce, Some(Egress::default()))],
            Decision::Deny,
        ),
        (vec![level(cluster, enforce, open()), level(claim, observe, other())], Decision::Allow),
        (vec![level(cluster, observe, open())], Decision::Deny),
        (vec![level(claim, enforce, open())], Decision::Deny),
        (vec![level(cluster, observe, open()), level(claim, enforce, open())], Decision::Deny),
    ] {
        assert_eq!(decision(&levels, "a.example.com"), expected, "{levels:?}");
    }
}

#[test]
fn verdict_names_level_and_rule() {
    let levels = [
        level(Authority::Claim, Mode::Observe, Some(egress(r#"{"rules": []}"#))),
        level(
            Authority::Cluster,
            Mode::Enforce,
            Some(egress(r#"{"rules": [{"name": "all", "any": true}]}"#)),
        ),
    ];
    let destination = "a.example.com".parse().unwrap();
    let verdict = decide(&levels, &destination);
    let opinions: Vec<_> =
        verdict.opinions.iter().map(|o| (o.level.name.as_str(), o.rule, o.decision)).collect();
    assert_eq!(opinions, [("Cluster", Some("all"), Decision::Allow), ("Claim", None, Decision::Deny)]);
    assert_eq!(destination.to_string(), "a.example.com:443");
}

/// The other entries of a rule do not open a path that one of them denies.
#[test]
fn denied_path_of_a_rule_with_calls_is_denied_for_every_call() {
    let floor = r#"{"rules": [{"name": "a", "any": true}, {"name": "b", "any": true,
        "http": [{}, {"paths": ["/admin/**"], "decision": "Deny"}], "mcp": [{"tools": ["x"]}]}]}"#;
    let levels = [level(Authority::Cluster, Mode::Enforce, Some(egress(floor)))];
    let destination = "a.x.com".parse().unwrap();
    for (tool, path, expected) in [
        (Some("x"), "/a", Decision::Allow),
        (Some("y"), "/a", Decision::Allow),
        (Some("x"), "/admin/a", Decision::Deny),
        (Some("y"), "/admin/a", Decision::Deny),
        (None, "/admin/a", Decision::Deny),
    ] {
        let found = requested(("POST", path, Some(5), tool), &levels, &destination).0;
        assert_eq!(found, expected, "{tool:?} {path}");
    }
}

#[test]
fn fields_without_meaning_are_refused() {
    for json in [
        r#"{"rules": [{"name": "a", "host": ["b"]}]}"#,
        r#"{"rule": []}"#,
        r#"{"rules": [{"hosts": ["b"]}]}"#,
        r#"{"rules": [{"name": "a", "hosts": ["*"]}]}"#,
        r#"{"rules": [{"name": "a", "decision": "Ask"}]}"#,
        r#"{"rules": [{"name": "a", "ports": [0]}]}"#,
        r#"{"rules": [{"name": "a", "cidrs": ["10.0.0.1/8"]}]}"#,
    ] {
        assert!(serde_json::from_str::<Egress>(json).is_err(), "{json}");
    }
    for text in ["a:", "a:0", "a:65536", "a:+1", ":443", "a:b:1", "[::1", "[::1]x"] {
        assert!(text.parse::<Destination>().is_err(), "{text}");
    }
    assert_eq!("::1".parse::<Destination>().unwrap().to_string(), "[::1]:443");
    assert_eq!("[::1]:8".parse::<Destination>().unwrap().to_string(), "[::1]:8");
}

fn any_rule() -> impl Strategy<Value = EgressRule> {
    let hosts = prop::collection::vec(
        prop::sample::select(vec!["a.x.com", "*.x.com", "**.x.com", "b-*.y.com"]),
        0..3,
    );
    let cidrs =
        prop::collection::vec(prop::sample::select(vec!["10.0.0.0/8", "10.1.0.0/16", "fd00::/8"]), 0..2);
    let ports = prop::collection::vec(prop::sample::select(vec!["443", "1-100", "80"]), 0..2);
    let decision = prop::sample::select(vec![Decision::Allow, Decision::Allow, Decision::Deny]);
    let protocol = prop::sample::select(vec![Protocol::Auto, Protocol::Tcp]);
    let private =
        prop::collection::vec(prop::sample::select(vec!["10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0"]), 0..2);
    let tls = prop::sample::select(vec![Tls::Auto, Tls::Auto, Tls::Passthrough]);
    let when = prop::sample::select(vec![
        None,
        None,
        Some("session.denials == 0"),
        Some("session.denials > 0"),
        Some("task.missing == 1"),
        Some("request.method == 'GET'"),
    ]);
    let http = prop::sample::select(vec![
        "[]",
        "[]",
        r#"[{"methods": ["GET"]}]"#,
        r#"[{"paths": ["/a/**"], "body": {"maxBytes": 5}}]"#,
        r#"[{"methods": ["POST"], "decision": "Deny"}]"#,
        r#"[{}, {"paths": ["/a"], "decision": "Deny"}]"#,
    ]);
    let mcp = prop::sample::select(vec![
        "[]",
        "[]",
        r#"[{"tools": ["x"]}]"#,
        r#"[{"tools": ["*"]}, {"tools": ["x"], "decision": "Deny"}]"#,
    ]);
    let credentials =
        prop::sample::select(vec![None, None, Some("[]"), Some(r#"["c"]"#), Some(r#"["c", "d"]"#)]);
    let reads = (tls, when, http, mcp, credentials);
    ("[a-c]", hosts, any::<bool>(), cidrs, ports, any::<bool>(), protocol, private, decision, reads).prop_map(
        |(name, hosts, any, cidrs, ports, plaintext, protocol, private, decision, reads)| EgressRule {
            tls: reads.0,
            when: reads.1.map(|text| Expression::try_from(text.to_owned()).unwrap()),
            http: serde_json::from_str(reads.2).unwrap(),
            mcp: serde_json::from_str(reads.3).unwrap(),
            credentials: reads.4.map(|names| serde_json::from_str(names).unwrap()),
            name,
            hosts: hosts.into_iter().map(|text| text.parse().unwrap()).collect(),
            any,
            cidrs: cidrs.into_iter().map(|text| text.parse().unwrap()).collect(),
            ports: ports.into_iter().map(|text| text.parse().unwrap()).collect(),
            plaintext,
            protocol,
            private: private.into_iter().map(|text| text.parse().unwrap()).collect(),
            // Beside entries it has no effect, and is refused.
            decision: if reads.2 == "[]" && reads.3 == "[]" { decision } else { Decision::Allow },
            ..EgressRule::default()
        },
    )
}

fn any_level() -> impl Strategy<Value = Level> {
    prop_oneof![4 => any_policy(), 1 => any_network_policy()]
}

/// The `networkPolicy` of a template, by itself or beside other levels.
fn any_network_policy() -> impl Strategy<Value = Level> {
    let egress = prop::sample::select(vec![
        "[]",
        "[{}]",
        r#"[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]"#,
        r#"[{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]}]"#,
        r#"[{"to": [{"ipBlock": {"cidr": "fd00::/8"}}, {"ipBlock": {"cidr": "10.1.2.3/32"}}],
            "ports": [{"port": 80, "endPort": 8080}]}]"#,
    ]);
    (egress, any::<bool>()).prop_map(|(egress, alone)| {
        let egress: serde_json::Value = serde_json::from_str(egress).unwrap();
        let read =
            NetworkLevel::read("t", &serde_json::json!({ "networkPolicy": {"egress": egress} })).unwrap();
        let level = if alone { read.alone } else { read.beside };
        Level::clone(&level)
    })
}

fn any_policy() -> impl Strategy<Value = Level> {
    use Authority::{Claim, Cluster, Invocation, Namespace, Template};
    let authority = prop::sample::select(vec![Cluster, Namespace, Template, Claim, Invocation]);
    let mode = prop::sample::select(vec![Mode::Enforce, Mode::Enforce, Mode::Observe]);
    let budget = prop::sample::select(vec![
        None,
        None,
        Some(r#"{"requests": 5, "requestsPer": "1m"}"#),
        Some(r#"{"bytesOut": "1Ki", "per": "1h", "hosts": 2}"#),
    ]);
    let egress = (prop::collection::vec(any_rule(), 0..4), budget).prop_map(|(rules, budget)| Egress {
        rules: rules.into(),
        budget: budget.map(|budget| serde_json::from_str(budget).unwrap()),
    });
    let scanner = prop::sample::select(vec![
        None,
        None,
        Some("{}"),
        Some(r#"{"outbound": "Log", "inbound": "Block"}"#),
    ]);
    let credentials = prop::sample::select(vec![
        "[]",
        "[]",
        r#"[{"name": "c", "hosts": ["a.x.com"], "provider": "p"}]"#,
        r#"[{"name": "d", "hosts": ["**.x.com"], "ports": [443, 80], "provider": "p"}]"#,
    ]);
    (authority, "[a-c]", mode, prop::option::of(egress), scanner, credentials).prop_map(
        |(authority, name, mode, egress, scanner, credentials)| Level {
            mode,
            scanner: scanner.map(|scanner| serde_json::from_str(scanner).unwrap()),
            credentials: serde_json::from_str(credentials).unwrap(),
            ..Level::new(authority, name, egress)
        },
    )
}

fn any_destination() -> impl Strategy<Value = Destination> {
    let host = prop::sample::select(vec![
        "a.x.com",
        "c.a.x.com",
        "x.com",
        "b-1.y.com",
        "10.1.2.3",
        "10.2.0.1",
        "[fd00::1]",
    ]);
    let port = prop::sample::select(vec![443, 80, 22, 8080]);
    (host, port).prop_map(|(host, port)| format!("{host}:{port}").parse().unwrap())
}

/// Addresses to which a destination may lead.
const ADDRESSES: [&str; 5] = ["10.1.2.3", "10.2.0.1", "127.0.0.1", "1.1.1.1", "169.254.169.254"];

/// Values of a request, from which one is made: method, path, length of its body, and a tool that it calls.
type Parts = (&'static str, &'static str, Option<u64>, Option<&'static str>);

fn any_request() -> impl Strategy<Value = Parts> {
    let method = prop::sample::select(vec!["GET", "POST", "PUT"]);
    let path = prop::sample::select(vec!["/", "/a", "/a/b"]);
    let length = prop::sample::select(vec![None, Some(0), Some(5), Some(6)]);
    let tool = prop::sample::select(vec![None, Some("x"), Some("y")]);
    (method, path, length, tool)
}

/// Decides about a request. Returns also which of two credentials it may use.
fn requested(
    (method, path, length, tool): Parts,
    levels: &[Level],
    destination: &Destination,
) -> (Decision, u64, [bool; 2]) {
    let path = Path::read(path).unwrap();
    let call = |tool: &str| Call {
        method: Some("tools/call".into()),
        tool: Some(tool.to_owned()),
        arguments: serde_json::Value::Null,
    };
    let calls = tool.map(|tool| [call(tool)]);
    let request = Request {
        host: "a.x.com",
        port: 443,
        method,
        path: &path,
        query: "",
        headers: Vec::new(),
        websocket: false,
        tls: true,
        length,
        calls: calls.as_ref().map(|calls| &calls[..]),
    };
    let verdict = super::decide_request(levels, destination, &request, &Moment::default());
    let usable = ["c", "d"]
        .map(|name| crate::usable::may_use(levels, name, destination, &request, &Moment::default()));
    (verdict.decision, verdict.max_body, usable)
}

/// A level with its rules and their entries in any order.
fn reordered(level: Level) -> impl Strategy<Value = Level> {
    let rules: Vec<EgressRule> =
        level.egress.iter().flat_map(|egress| egress.rules.iter().cloned()).collect();
    let entries = |rule: EgressRule| {
        let entries = (Just(rule.http.clone()).prop_shuffle(), Just(rule.mcp.clone()).prop_shuffle());
        entries.prop_map(move |(http, mcp)| EgressRule { http, mcp, ..rule.clone() })
    };
    let rules: Vec<_> = rules.into_iter().map(entries).collect();
    rules.prop_shuffle().prop_map(move |rules| {
        let mut level = level.clone();
        if let Some(egress) = &mut level.egress {
            egress.rules = rules.into();
        }
        level
    })
}

/// Levels, and the same ones in any order.
fn any_levels_twice() -> impl Strategy<Value = (Vec<Level>, Vec<Level>)> {
    prop::collection::vec(any_level(), 1..5).prop_flat_map(|levels| {
        let others: Vec<_> = levels.iter().cloned().map(reordered).collect();
        (Just(levels), others.prop_shuffle())
    })
}

/// Returns true for a level without which nothing is open.
fn opens(level: &Level) -> bool {
    level.mode == Mode::Enforce && level.egress.is_some() && level.authority != Authority::Claim
}

proptest! {
    /// Once one level decides, a further level can only take away.
    #[test]
    fn one_more_level_never_allows_more(
        levels in prop::collection::vec(any_level(), 1..5),
        more in any_level(),
        destination in any_destination(),
    ) {
        prop_assume!(levels.iter().any(opens));
        let before = decide(&levels, &destination);
        let with_more: Vec<_> = levels.iter().cloned().chain([more]).collect();
        let after = decide(&with_more, &destination);
        prop_assert!(after.decision >= before.decision);
        prop_assert!(after.traffic <= before.traffic);
        // What was read is still read, unless it is denied now.
        prop_assert!(after.inspect >= before.inspect && after.scan >= before.scan);
        for address in ADDRESSES {
            let address = address.parse().unwrap();
            let dialed = |levels: &[Level]| may_dial(levels, &destination, address, &[]);
            prop_assert!(dialed(&levels).is_ok() || dialed(&with_more).is_err());
        }
    }

    /// Once one level decides, a further level can only take away.
    #[test]
    fn one_more_level_never_allows_more_requests(
        levels in prop::collection::vec(any_level(), 1..5),
        more in any_level(),
        destination in any_destination(),
        request in any_request(),
    ) {
        prop_assume!(levels.iter().any(opens));
        let (before, body, usable) = requested(request, &levels, &destination);
        let with_more: Vec<_> = levels.iter().cloned().chain([more]).collect();
        let (after, body_after, usable_after) = requested(request, &with_more, &destination);
        prop_assert!(after >= before && body_after <= body);
        prop_assert!(usable_after.iter().zip(usable).all(|(after, before)| *after <= before));
    }

    /// A request needs a connection that is allowed, and is decided by itself only where requests are read.
    #[test]
    fn connection_and_requests_are_decided_alike(
        levels in prop::collection::vec(any_level(), 1..5),
        destination in any_destination(),
        request in any_request(),
    ) {
        let connection = decide(&levels, &destination);
        let (decision, ..) = requested(request, &levels, &destination);
        match (connection.decision, connection.inspect) {
            (Decision::Deny, _) if !connection.conflict => prop_assert_eq!(decision, Decision::Deny),
            (Decision::Allow, false) => prop_assert_eq!(decision, Decision::Allow),
            _ => {}
        }
    }

    #[test]
    fn order_has_no_meaning_for_requests(
        (levels, others) in any_levels_twice(),
        destination in any_destination(),
        request in any_request(),
    ) {
        prop_assert_eq!(requested(request, &levels, &destination), requested(request, &others, &destination));
    }

    #[test]
    fn name_that_does_not_resolve_is_denied_at_every_port(
        levels in prop::collection::vec(any_level(), 0..4),
        destination in any_destination(),
    ) {
        if let Host::Name(name) = &destination.host
            && !may_resolve(&levels, name)
        {
            prop_assert_eq!(decide(&levels, &destination).decision, Decision::Deny);
        }
    }

    #[test]
    fn one_more_deny_rule_never_allows_more(
        mut levels in prop::collection::vec(any_level(), 1..4),
        mut rule in any_rule(),
        destination in any_destination(),
    ) {
        let before = decide(&levels, &destination).decision;
        rule.decision = Decision::Deny;
        (rule.http, rule.mcp) = (Vec::new(), Vec::new());
        if let Some(egress) = &mut levels[0].egress {
            egress.rules.push(rule);
        }
        prop_assert!(decide(&levels, &destination).decision >= before);
    }

    /// Regression: a rule with entries that allow and entries that deny allowed also where its condition had no value.
    #[test]
    fn condition_without_a_value_is_at_least_as_strict_as_true_and_as_false(
        mut levels in prop::collection::vec(any_level(), 1..4),
        rule in any_rule(),
        destination in any_destination(),
        request in any_request(),
    ) {
        levels[0].egress.get_or_insert_default().rules.push(rule);
        let found = ["task.missing == 1", "true", "false"].map(|when| {
            if let Some(rule) = levels[0].egress.iter_mut().flat_map(|egress| &mut egress.rules).last() {
                rule.when = Some(Expression::try_from(when.to_owned()).unwrap());
            }
            let (connection, request) = (decide(&levels, &destination), requested(request, &levels, &destination));
            let dialed = may_dial(&levels, &destination, "10.1.2.3".parse().unwrap(), &[]);
            ((connection.decision, connection.conflict), request.0, request.1, dialed.is_ok(), request.2)
        });
        let unknown = found[0];
        for (connection, request, body, dialed, usable) in &found[1..] {
            let (decision, conflict) = *connection;
            // Without a value, no rule keeps TLS from being ended.
            prop_assert!((unknown.0.0 >= decision || conflict) && unknown.1 >= *request);
            prop_assert!(unknown.0.0 == Decision::Deny || unknown.3 <= *dialed);
            let opens_more = |this: &[bool; 2]| this.iter().zip(usable).any(|(this, other)| this > other);
            prop_assert!(unknown.1 == Decision::Deny || (unknown.2 <= *body && !opens_more(&unknown.4)));
        }
    }

    #[test]
    fn order_of_levels_and_rules_has_no_meaning(
        (levels, others) in any_levels_twice(),
        destination in any_destination(),
    ) {
        let (verdict, other) = (decide(&levels, &destination), decide(&others, &destination));
        prop_assert_eq!(verdict.decision, other.decision);
        for address in ADDRESSES {
            let dialed = |levels: &[Level]| may_dial(levels, &destination, address.parse().unwrap(), &[]).is_ok();
            prop_assert_eq!(dialed(&levels), dialed(&others), "{}", address);
        }
        let rules = |verdict: &Verdict<'_>| {
            let mut rules: Vec<_> = verdict
                .opinions
                .iter()
                .map(|o| (o.level.authority, o.level.name.clone(), o.rule.map(str::to_owned), o.decision))
                .collect();
            rules.sort();
            rules
        };
        prop_assert_eq!(rules(&verdict), rules(&other));
    }

    #[test]
    fn level_that_observes_changes_no_decision(
        levels in prop::collection::vec(any_level(), 0..4),
        mut more in any_level(),
        destination in any_destination(),
    ) {
        more.mode = Mode::Observe;
        let with_more: Vec<_> = levels.iter().cloned().chain([more]).collect();
        prop_assert_eq!(decide(&levels, &destination).decision, decide(&with_more, &destination).decision);
    }
}

#[test]
fn denied_addresses_are_closed_for_names_that_lead_to_them() {
    let web = egress(r#"{"rules": [{"name": "web", "hosts": ["web.example"], "ports": [80, 443]}]}"#);
    let denied = egress(
        r#"{"rules": [{"name": "all", "any": true, "ports": [80, 443]},
            {"name": "no", "cidrs": ["8.8.8.0/24", "2606:4700::/32"], "ports": [443], "decision": "Deny"}]}"#,
    );
    let dials = |mode, port: u16, address: &str| {
        let levels = [
            level(Authority::Cluster, Mode::Enforce, Some(web.clone())),
            level(Authority::Namespace, mode, Some(denied.clone())),
        ];
        let destination = format!("web.example:{port}").parse().unwrap();
        may_dial(&levels, &destination, address.parse().unwrap(), &[])
    };
    for address in ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2606:4700::1111"] {
        let denied = Forbidden::Denied { level: "Namespace".into(), rule: "no".into() };
        assert_eq!(dials(Mode::Enforce, 443, address), Err(denied), "{address}");
        assert_eq!(dials(Mode::Enforce, 80, address), Ok(()), "{address}: another port");
        assert_eq!(dials(Mode::Observe, 443, address), Ok(()), "{address}: it only observes");
    }
    assert_eq!(dials(Mode::Enforce, 443, "8.8.4.4"), Ok(()));
    // An address by itself, in the forms that stand for it.
    let all = egress(
        r#"{"rules": [{"name": "all", "cidrs": ["0.0.0.0/0", "::/0"]},
            {"name": "no", "cidrs": ["8.8.8.0/24"], "decision": "Deny"}]}"#,
    );
    let levels = [level(Authority::Cluster, Mode::Enforce, Some(all))];
    for (address, closed) in
        [("64:ff9b::808:808", true), ("2002:808:808::1", true), ("2002:808:404::1", false)]
    {
        let destination: Destination = format!("[{address}]:443").parse().unwrap();
        let dialed = may_dial(&levels, &destination, address.parse().unwrap(), &[]);
        assert_eq!(matches!(dialed, Err(Forbidden::Denied { .. })), closed, "{address}");
    }
}

#[test]
fn traffic_is_that_of_the_strictest_level() {
    let rules = |json: &str| Some(egress(&format!(r#"{{"rules": [{json}]}}"#)));
    let auto = r#"{"name": "a", "hosts": ["a.example.com"], "ports": [443, 5432]}"#;
    let plain = r#"{"name": "p", "hosts": ["a.example.com"], "plaintext": true}"#;
    let tcp = r#"{"name": "t", "hosts": ["a.example.com"], "ports": [5432], "protocol": "TCP"}"#;
    let all = format!("{auto}, {plain}, {tcp}");
    let of = |levels: &[Level], destination: &str| decide(levels, &destination.parse().unwrap()).traffic;
    let one = level(Authority::Namespace, Mode::Enforce, rules(&all));
    let other = level(Authority::Claim, Mode::Enforce, rules(auto));
    let observer = level(Authority::Claim, Mode::Observe, rules(auto));
    let levels = [one.clone()];
    assert_eq!(of(&levels, "a.example.com:5432"), Traffic::Any);
    assert_eq!(of(&levels, "a.example.com:443"), Traffic::Tls);
    assert_eq!(of(&levels, "a.example.com:80"), Traffic::Web);
    assert_eq!(of(&[one.clone(), other], "a.example.com:5432"), Traffic::Tls);
    assert_eq!(of(&[one, observer], "a.example.com:5432"), Traffic::Any);
    assert_eq!(of(&[], "a.example.com:5432"), Traffic::Tls);
}

#[test]
fn private_address_is_dialed_where_a_rule_of_every_level_opens_it() {
    let rules = |private: &str| {
        Some(egress(&format!(
            r#"{{"rules": [{{"name": "db", "hosts": ["db.example.com"], "private": [{private}]}},
                {{"name": "other", "hosts": ["other.example.com"], "private": ["192.168.0.0/16"]}}]}}"#
        )))
    };
    let dialed = |private: &[&str], address: &str| {
        let levels: Vec<_> = private
            .iter()
            .map(|private| level(Authority::Namespace, Mode::Enforce, rules(private)))
            .collect();
        may_dial(&levels, &"db.example.com".parse().unwrap(), address.parse().unwrap(), &[]).is_ok()
    };
    let (wide, narrow) = (r#""10.0.0.0/8""#, r#""10.20.0.0/16""#);
    assert!(dialed(&[wide], "10.1.0.1") && !dialed(&[narrow], "10.1.0.1"));
    assert!(dialed(&[wide, narrow], "10.20.0.1") && !dialed(&[wide, narrow], "10.1.0.1"));
    assert!(!dialed(&[wide, ""], "10.20.0.1") && dialed(&[wide, ""], "1.1.1.1"));
    assert!(!dialed(&[wide], "192.168.0.1"), "a range of another rule");
    assert!(!dialed(&[], "10.1.0.1") && !dialed(&[r#""0.0.0.0/0""#], "169.254.169.254"));
}

#[test]
fn address_of_this_machine_is_opened_by_administrators_and_callers_alone() {
    let rules =
        || Some(egress(r#"{"rules": [{"name": "a", "any": true, "private": ["0.0.0.0/0", "::/0"]}]}"#));
    let dialed = |authorities: &[Authority], address: &str| {
        let levels: Vec<_> =
            authorities.iter().map(|authority| level(*authority, Mode::Enforce, rules())).collect();
        may_dial(&levels, &"a.example.com".parse().unwrap(), address.parse().unwrap(), &[]).is_ok()
    };
    use Authority::{Cluster, Invocation, Namespace, Template};
    for address in ["127.0.0.1", "::1", "192.0.2.1", "2001:db8::1"] {
        assert!(dialed(&[Cluster], address) && dialed(&[Invocation], address), "{address}");
        for others in [vec![Namespace], vec![Template], vec![Cluster, Namespace]] {
            assert!(!dialed(&others, address), "{address} {others:?}");
        }
    }
    for address in ["10.0.0.1", "100.64.0.1", "fd12::1"] {
        assert!(dialed(&[Namespace], address) && dialed(&[Cluster, Namespace], address), "{address}");
    }
}

#[test]
fn name_resolves_where_every_level_allows_some_port_of_it() {
    let rules = |json: &str| Some(egress(&format!(r#"{{"rules": [{json}]}}"#)));
    let a = r#"{"name": "a", "hosts": ["a.example.com"], "ports": [5432]}"#;
    let any = r#"{"name": "any", "any": true}"#;
    let net = r#"{"name": "net", "cidrs": ["0.0.0.0/0"]}"#;
    let deny = r#"{"name": "deny", "any": true, "decision": "Deny"}"#;
    let name = "a.example.com".parse().unwrap();
    for (levels, expected) in [
        (vec![], false),
        (vec![None], false),
        (vec![rules(a)], true),
        (vec![rules(any), rules(a), None], true),
        (vec![rules(any), rules(net)], false),
        (vec![rules(deny)], false),
    ] {
        let levels: Vec<Level> =
            levels.into_iter().map(|egress| level(Authority::Template, Mode::Enforce, egress)).collect();
        assert_eq!(may_resolve(&levels, &name), expected, "{levels:?}");
    }
}

#[test]
fn requests_are_read_only_where_a_rule_needs_it() {
    let rule = |more: &str| format!(r#"{{"name": "r{}", "hosts": ["a.example.com"]{more}}}"#, more.len());
    let (plain, pass) = (rule(""), rule(r#", "tls": "Passthrough""#));
    let get = rule(r#", "http": [{"methods": ["GET"]}]"#);
    let deny = rule(r#", "http": [{"methods": ["POST"], "decision": "Deny"}]"#);
    let when = rule(r#", "when": "request.method == 'GET'""#);
    let of_task = rule(r#", "when": "task.risk <= 2""#);
    for (rules, decision, inspect, conflict) in [
        (vec![&plain], Decision::Allow, false, false),
        (vec![&get], Decision::Allow, true, false),
        (vec![&plain, &get], Decision::Allow, false, false),
        (vec![&deny], Decision::Deny, false, false),
        (vec![&plain, &deny], Decision::Allow, true, false),
        (vec![&when], Decision::Allow, true, false),
        (vec![&of_task], Decision::Deny, false, false),
        (vec![&pass], Decision::Allow, false, false),
        (vec![&pass, &deny], Decision::Deny, true, true),
    ] {
        let list = rules.iter().map(|rule| rule.as_str()).collect::<Vec<_>>().join(",");
        let levels =
            [level(Authority::Template, Mode::Enforce, Some(egress(&format!(r#"{{"rules": [{list}]}}"#))))];
        let destination = "a.example.com".parse().unwrap();
        let verdict = decide(&levels, &destination);
        assert_eq!(
            (verdict.decision, verdict.inspect, verdict.conflict),
            (decision, inspect, conflict),
            "{rules:?}"
        );
    }
}

#[test]
fn rule_without_plaintext_allows_no_request_without_tls() {
    let rules = egress(
        r#"{"rules": [
            {"name": "plain", "hosts": ["a.x.com"], "ports": [80], "plaintext": true, "http": [{"methods": ["GET"]}]},
            {"name": "tls", "hosts": ["a.x.com"], "ports": [80]}
        ]}"#,
    );
    let levels = [level(Authority::Cluster, Mode::Enforce, Some(rules))];
    let destination: Destination = "a.x.com:80".parse().unwrap();
    let path = Path::read("/").unwrap();
    let decided = |method: &str, tls| {
        let request = Request {
            host: "a.x.com",
            port: 80,
            method,
            path: &path,
            query: "",
            headers: Vec::new(),
            websocket: false,
            tls,
            length: Some(0),
            calls: None,
        };
        super::decide_request(&levels, &destination, &request, &Moment::default()).decision
    };
    assert_eq!((decided("GET", false), decided("POST", true)), (Decision::Allow, Decision::Allow));
    assert_eq!(decided("POST", false), Decision::Deny);
}

#[test]
fn scanner_needs_traffic_to_be_read_unless_its_own_level_forbids_it() {
    let rules = |json: &str| Some(egress(&format!(r#"{{"rules": [{json}]}}"#)));
    let scans = |authority, egress| Level {
        scanner: Some(ScannerRules::default()),
        ..level(authority, Mode::Enforce, egress)
    };
    let plain = r#"{"name": "a", "hosts": ["a.example"]}"#;
    let through = r#"{"name": "a", "hosts": ["a.example"], "tls": "Passthrough"}"#;
    let tcp = r#"{"name": "a", "hosts": ["a.example"], "protocol": "TCP"}"#;
    let tcp_when = |when: &str| {
        format!(r#"{{"name": "b", "hosts": ["a.example"], "protocol": "TCP", "when": "{when}"}}"#)
    };
    let (cluster, namespace) = (Authority::Cluster, Authority::Namespace);
    let observes = Level { mode: Mode::Observe, ..scans(cluster, None) };
    for (levels, scan, conflict, decision) in [
        (vec![scans(namespace, rules(plain))], true, false, Decision::Allow),
        (vec![scans(namespace, rules(through))], false, false, Decision::Allow),
        (vec![scans(namespace, rules(tcp))], false, false, Decision::Allow),
        // Regression: a rule that does not hold turned the scanner off.
        (
            vec![scans(namespace, rules(&format!("{plain}, {}", tcp_when("session.requests < 0"))))],
            true,
            false,
            Decision::Allow,
        ),
        (
            vec![scans(namespace, rules(&format!("{plain}, {}", tcp_when("session.requests == 0"))))],
            false,
            false,
            Decision::Allow,
        ),
        (vec![scans(cluster, None)], true, false, Decision::Deny),
        (
            vec![scans(cluster, None), level(namespace, Mode::Enforce, rules(plain))],
            true,
            false,
            Decision::Allow,
        ),
        (
            vec![scans(cluster, None), level(namespace, Mode::Enforce, rules(through))],
            true,
            true,
            Decision::Deny,
        ),
        (vec![observes, level(namespace, Mode::Enforce, rules(through))], false, false, Decision::Allow),
    ] {
        let destination = "a.example".parse().unwrap();
        let verdict = decide(&levels, &destination);
        assert_eq!(
            (verdict.scan, verdict.conflict, verdict.decision, verdict.inspect),
            (scan, conflict, decision, false),
            "{levels:?}"
        );
    }
}

/// Regression: an address of the machine in a private network was taken for one of that network.
#[test]
fn address_of_the_machine_in_a_private_network_is_opened_by_administrators_and_by_itself() {
    const LAN: &str = r#""10.0.0.0/8", "fd00::/8""#;
    const BOTH: &str = r#""10.0.0.5", "fd00::5""#;
    for (authority, private, opens) in [
        (Authority::Cluster, LAN, false),
        (Authority::Cluster, BOTH, true),
        (Authority::Invocation, LAN, false),
        (Authority::Invocation, BOTH, true),
        (Authority::Namespace, LAN, false),
        (Authority::Namespace, BOTH, false),
        (Authority::Template, BOTH, false),
    ] {
        let lan = format!(r#"{{"rules": [{{"name": "lan", "cidrs": [{LAN}], "private": [{private}]}}]}}"#);
        let levels = [level(authority, Mode::Enforce, Some(egress(&lan)))];
        for address in ["10.0.0.5", "fd00::5"] {
            let address: IpAddr = address.parse().unwrap();
            let destination = Destination { host: Host::Address(address), port: 443.try_into().unwrap() };
            assert_eq!(may_dial(&levels, &destination, address, &[]), Ok(()));
            let dialed = may_dial(&levels, &destination, address, &[address]);
            let expected = if opens { Ok(()) } else { Err(Forbidden::ThisMachine) };
            assert_eq!(dialed, expected, "{authority:?} {private} {address}");
        }
    }
}

/// Regression: an IPv6 address that stands for an IPv4 address was compared with ranges of IPv6 alone.
#[test]
fn network_policy_closes_the_ipv4_address_for_which_an_address_stands() {
    let but_one = r#"{"rules": [{"name": "v6", "cidrs": ["::/0"], "ports": ["1-65535"]},
        {"name": "v4", "cidrs": ["192.0.0.0/8", "8.0.0.0/8"], "ports": ["1-65535"]}]}"#;
    let named = r#"{"rules": [{"name": "all", "any": true, "cidrs": ["0.0.0.0/0", "::/0"]}]}"#;
    let template = Level::new(Authority::Template, NETWORK_POLICY, Some(egress(but_one)));
    let levels = [template, level(Authority::Cluster, Mode::Enforce, Some(egress(named)))];
    for (address, expected) in [
        ("8.8.8.8", Ok(())),
        ("64:ff9b::808:808", Ok(())),
        ("2002:808:808::1", Ok(())),
        ("9.9.9.9", Err(Forbidden::NetworkPolicy)),
        ("64:ff9b::909:909", Err(Forbidden::NetworkPolicy)),
        ("2002:909:909::1", Err(Forbidden::NetworkPolicy)),
        ("2606:4700::1111", Ok(())),
    ] {
        let address: IpAddr = address.parse().unwrap();
        let of = |host| Destination { host, port: 443.try_into().unwrap() };
        let name = of(Host::Name("a.example".parse().unwrap()));
        assert_eq!(may_dial(&levels, &name, address, &[]), expected, "a name that leads to {address}");
        let literal = of(Host::Address(address));
        let allowed = decide(&levels, &literal).decision == Decision::Allow;
        let reached = allowed && may_dial(&levels, &literal, address, &[]).is_ok();
        assert_eq!(reached, expected.is_ok(), "{address}");
    }
}

/// Regression: it denied port 443 alone.
#[test]
fn rule_that_denies_without_ports_denies_every_port() {
    let all = r#"{"name": "all", "any": true, "cidrs": ["0.0.0.0/0"], "ports": ["1-65535"]}"#;
    let no = r#"{"name": "no", "hosts": ["a.example"], "cidrs": ["192.0.2.0/24"], "decision": "Deny"}"#;
    let levels =
        [level(Authority::Cluster, Mode::Enforce, Some(egress(&format!(r#"{{"rules": [{all}, {no}]}}"#))))];
    for port in [1, 80, 443, 8443, 65535] {
        for (host, expected) in
            [("a.example", Decision::Deny), ("192.0.2.1", Decision::Deny), ("b.example", Decision::Allow)]
        {
            assert_eq!(decision(&levels, &format!("{host}:{port}")), expected, "{host}:{port}");
        }
    }
}

#[test]
fn denial_names_the_condition_that_does_not_hold() {
    let facts = crate::expression::Facts {
        task: [("risk".to_owned(), "3".to_owned())].into(),
        ..crate::expression::Facts::default()
    };
    let moment = Moment { facts: &facts, ..Moment::default() };
    let path = Path::read("/a").unwrap();
    let request = Request {
        host: "a.example",
        port: 443,
        method: "GET",
        path: &path,
        query: "",
        headers: Vec::new(),
        websocket: false,
        tls: true,
        length: Some(0),
        calls: None,
    };
    let (destination, other) = ("a.example".parse().unwrap(), "b.example".parse().unwrap());
    let is_false = Some(r#"the condition "task.risk <= 2" of rule "r" is false"#);
    let missing = Some(r#"the condition "task.kind == 'x'" of rule "r" has no value: task.kind is missing"#);
    let both = Some(
        r#"the condition "task.a == 1 || user.name == 'x'" of rule "r" has no value: task.a, user.name are missing"#,
    );
    for (fields, rule, connection, asked) in [
        (r#""when": "task.risk <= 2""#, None, is_false, is_false),
        (r#""when": "task.kind == 'x'""#, None, missing, missing),
        (r#""when": "task.kind == 'x'", "decision": "Deny""#, Some("r"), missing, missing),
        (r#""when": "task.a == 1 || user.name == 'x'""#, None, both, both),
        (r#""when": "task.risk <= 2", "http": [{"methods": ["GET"]}]"#, None, is_false, is_false),
        (r#""when": "task.risk <= 2", "http": [{"methods": ["POST"]}]"#, None, is_false, None),
        (r#""when": "task.risk <= 2", "decision": "Deny""#, None, None, None),
        (r#""when": "task.risk > 2", "decision": "Deny""#, Some("r"), None, None),
    ] {
        let rules = egress(&format!(r#"{{"rules": [{{"name": "r", "hosts": ["a.example"], {fields}}}]}}"#));
        let levels = [level(Authority::Cluster, Mode::Enforce, Some(rules))];
        let found = super::decide(&levels, &destination, &moment);
        let shown = |opinion: &Opinion<'_>| opinion.unmet.as_ref().map(ToString::to_string);
        assert_eq!((found.opinions[0].rule, found.decision), (rule, Decision::Deny), "{fields}");
        assert_eq!(shown(&found.opinions[0]).as_deref(), connection, "{fields}");
        let found = super::decide_request(&levels, &destination, &request, &moment);
        assert_eq!((found.opinions[0].rule, shown(&found.opinions[0]).as_deref()), (rule, asked), "{fields}");
        assert_eq!(super::decide(&levels, &other, &moment).opinions[0].unmet, None, "{fields}");
    }
}

/// Found by attack: one call could take minutes of a thread that all sandboxes share.
#[test]
fn conditions_on_the_arguments_of_a_call_take_a_bounded_time() {
    let path = Path::read("/mcp").unwrap();
    let decision = |entries: usize, args: &str, calls: &[Call]| {
        let entry = format!(r#"{{"args": "{args}"}}"#);
        let entries = vec![entry; entries].join(", ");
        let all = r#"{"tools": ["t"]}"#;
        let rules = format!(r#"{{"rules": [{{"name": "r", "any": true, "mcp": [{all}, {entries}]}}]}}"#);
        let levels = [level(Authority::Cluster, Mode::Enforce, Some(egress(&rules)))];
        let request = Request {
            host: "a.example",
            port: 443,
            method: "POST",
            path: &path,
            query: "",
            headers: Vec::new(),
            websocket: false,
            tls: true,
            length: None,
            calls: Some(calls),
        };
        let destination = "a.example".parse().unwrap();
        super::decide_request(&levels, &destination, &request, &Moment::default()).decision
    };
    let call = |arguments| Call { method: Some("tools/call".into()), tool: Some("t".into()), arguments };
    let pattern = |length: usize| call(serde_json::json!({"p": "(".repeat(length), "q": "x"}));
    let long = || call(serde_json::json!({"p": "a".repeat(1 << 20)}));
    let values = || call(serde_json::json!({"p": vec![0; 9_000]}));
    for (entries, args, calls, expected) in [
        (1, "args.p == 'b'", vec![long()], Decision::Allow),
        (20, "args.p == 'b'", vec![long()], Decision::Allow),
        (200, "args.p == 'b'", vec![long()], Decision::Deny),
        (200, "args.p == 'b'", vec![pattern(3); 10], Decision::Allow),
        (64, "args.p == 'b'", vec![values(); 12], Decision::Deny),
        // A pattern of the arguments that is too long is not read.
        (200, "args.q.matches(args.p)", vec![pattern(2000)], Decision::Allow),
        (200, "args.q.matches(args.p)", vec![pattern(900)], Decision::Allow),
    ] {
        assert_eq!(decision(entries, args, &calls), expected, "{entries} {args} {}", calls.len());
    }
    // Conditions elsewhere are evaluated as before.
    assert_eq!(decision(1, "args.p == 'b'", &[pattern(1)]), Decision::Allow);
}
