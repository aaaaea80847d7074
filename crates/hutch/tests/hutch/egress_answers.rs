//! Policies of `hutch run`: several of them, those that only observe, and the answers to what is refused.

use std::process::Command;

use crate::egress::{Caller, SERVER, Site, callers, http_server, policy, server};
use crate::harness::{HUTCH, refused, text};

#[test]
fn every_policy_must_allow_a_connection() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    let (port, _) = server(&format!("{SERVER}:0"), b"hello");
    let all = policy(
        &site,
        "all",
        "Enforce",
        &format!(
            "    - {{name: any, any: true, ports: [1-65535], protocol: TCP, private: [{SERVER}]}}\n\
        \x20   - {{name: no-db, hosts: [db.example], ports: [1-65535], decision: Deny}}\n"
        ),
    );
    let web = policy(
        &site,
        "web",
        "Enforce",
        &format!(
            "    - {{name: web, hosts: [web.example], ports: [{port}], protocol: TCP, private: [127.77.0.0/16]}}\n"
        ),
    );
    let watch = policy(&site, "watch", "Observe", "    - {name: nothing, hosts: [none.example]}\n");
    let public = policy(
        &site,
        "public",
        "Enforce",
        &format!("    - {{name: web, hosts: [web.example], ports: [{port}], protocol: TCP}}\n"),
    );
    let address = policy(
        &site,
        "address",
        "Enforce",
        &format!(
            "    - {{name: any, any: true, ports: [1-65535], protocol: TCP, private: [{SERVER}]}}\n\
        \x20   - {{name: no-address, cidrs: [{SERVER}], ports: [1-65535], decision: Deny}}\n"
        ),
    );
    let program = format!("print(tcp('web.example', {port}), tcp('db.example', {port}))");
    for (policies, reached, line) in [
        (vec![&all], true, "rule \"no-db\" of policy \"all\" denies it"),
        // The second policy gives it no address.
        (vec![&all, &web], true, ""),
        (vec![&all, &watch], true, "would refuse web.example"),
        (vec![&all, &public], false, "address of this machine"),
        (vec![&all, &address], false, "rule \"no-address\" of policy \"address\" denies it by its `cidrs`"),
        (
            vec![&watch],
            false,
            "would refuse web.example: no rule of policy \"watch\" allows it, but it only observes",
        ),
    ] {
        let mut options = Vec::new();
        policies.iter().for_each(|policy| options.extend(["--policy", policy]));
        for caller in callers() {
            let output = site.python(caller, &options, &program);
            let (printed, stderr) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(printed.starts_with("hello "), reached, "{policies:?} {printed} {stderr}");
            assert!(
                !printed.ends_with("hello\n") && stderr.contains(line),
                "{policies:?} {printed} {stderr}"
            );
        }
    }
}

#[test]
fn policies_that_only_observe_say_so_and_name_what_they_would_refuse() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    let watch = policy(&site, "watch", "Observe", "    - {name: web, hosts: [web.example], ports: [80]}\n");
    let program = "print(tcp('web.example', 443), tcp('db.example', 443), tcp('192.0.2.1', 443))";
    for caller in [Caller::Root, Caller::Ordinary] {
        let output = site.python(caller, &["--policy", &watch], program);
        let stderr = text(&output.stderr);
        assert_eq!(text(&output.stdout), "EAI_NONAME EAI_NONAME ConnectionResetError\n", "{stderr}");
        let would = "no rule of policy \"watch\" allows it, but it only observes";
        for line in [
            "hutch: --policy: all policies only observe, so nothing opens the network\n",
            "hutch: refused db.example: nothing allows it\n",
            &format!("hutch: would refuse db.example: {would}\n"),
            &format!("hutch: would refuse 192.0.2.1:443: {would}\n"),
        ] {
            assert_eq!(stderr.matches(line).count(), 1, "{line}: {stderr}");
        }
        // It allows another port of this one.
        assert!(!stderr.contains("would refuse web.example"), "{stderr}");
    }
}

/// Regression: the connection was reported too.
#[test]
fn request_that_a_policy_would_refuse_is_reported_once() {
    hutch_testkit::require!(root, user_namespaces, curl);
    let site = Site::new();
    let port = http_server();
    let open = format!(
        "    - {{name: web, hosts: [web.example], ports: [{port}], plaintext: true, private: [{SERVER}]}}\n"
    );
    let open = policy(&site, "open", "Enforce", &open);
    let watch = policy(&site, "watch", "Observe", "    - {name: other, hosts: [web.example], ports: [1]}\n");
    let url = format!("http://web.example:{port}/");
    for caller in [Caller::Root, Caller::Ordinary] {
        let options = ["--policy", &open, "--policy", &watch];
        let output = site.run(caller, &options, &["curl", "-s", &url]);
        let line = format!(
            "hutch: would refuse GET {url}: no rule of policy \"watch\" allows it, but it only observes\n"
        );
        assert_eq!(
            (text(&output.stdout).as_str(), text(&output.stderr)),
            ("GET / HTTP/1.1\n", line),
            "{caller:?}"
        );
    }
}

#[test]
fn flags_of_a_cluster_are_refused_with_a_policy() {
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("file").display().to_string();
    for flag in ["--token-key-file", "--kubeconfig", "--data-dir", "--probe-image"] {
        let arguments = ["egress", "--policy", &file, "--listen", "127.0.0.1:0", flag, &file];
        let output = Command::new(HUTCH).args(arguments).output().expect("hutch");
        refused(&output, 2, &["--policy", flag]);
    }
}

#[test]
fn refused_call_is_named_with_its_method_and_tool() {
    hutch_testkit::require!(root, user_namespaces, curl);
    let site = Site::new();
    let (port, received) = server(&format!("{SERVER}:0"), b"");
    let tools = format!(
        "    - {{name: tools, hosts: [web.example], ports: [{port}], plaintext: true, mcp: [{{tools: [\"search_*\"]}}]}}\n"
    );
    let tools = policy(&site, "tools", "Enforce", &tools);
    let url = format!("http://web.example:{port}/mcp");
    let call = |tool: &str| {
        serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}})
            .to_string()
    };
    let long = "x".repeat(5000);
    for (tool, shown) in [
        ("delete_all", "delete_all".to_owned()),
        ("a\u{202e}b): ok", r#""a\u{202e}b): ok""#.to_owned()),
        (&long, format!("{}...", &long[..100])),
    ] {
        let curl = ["curl", "-sS", "-d", &call(tool), &url];
        let output = site.run(Caller::Ordinary, &["--policy", &tools], &curl);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let message = answer["error"]["message"].as_str().expect("a message");
        let line = format!("refused POST {url} (tools/call {shown}): no rule of policy \"tools\" allows it");
        assert_eq!(message, line);
        assert_eq!(text(&output.stderr), format!("hutch: {line}\n"));
    }
    assert!(received.try_recv().is_err());
}

#[test]
fn refused_http_request_is_answered_with_the_reason() {
    hutch_testkit::require!(root, user_namespaces, curl);
    let site = Site::new();
    let tls = policy(&site, "tls", "Enforce", "    - {name: web, hosts: [web.example], ports: [80]}\n");
    for (url, reason) in [
        ("http://none.example/", "Could not resolve host"),
        ("http://192.0.2.1/", "refused 192.0.2.1:80: no rule of policy \\\"tls\\\" allows it"),
        ("http://web.example:8080/", "refused web.example:8080: no rule"),
        ("http://web.example/", "a rule with `plaintext: true` allows that"),
    ] {
        // Not to the standard error of `hutch run`: its lines about refusals would appear within those of curl.
        let curl = ["sh", "-c", "exec curl -sSi \"$1\" 2>&1", "sh", url];
        let printed = text(&site.run(Caller::Ordinary, &["--policy", &tls], &curl).stdout);
        assert!(printed.contains(reason), "{url}: {printed}");
        if !reason.starts_with("Could") {
            assert!(
                printed.contains("403 Forbidden") && printed.contains("application/problem+json"),
                "{printed}"
            );
        }
    }
}

#[test]
fn refused_client_of_tls_gets_the_reason_where_it_trusts_the_proxy() {
    hutch_testkit::require!(root, user_namespaces, curl);
    let site = Site::new();
    let rule = |name: &str, more: &str| {
        policy(&site, name, "Enforce", &format!("    - {{name: web, hosts: [web.example]{more}}}\n"))
    };
    let (joins, reads) = (rule("joins", ""), rule("reads", ", http: [{methods: [GET]}]"));
    for caller in callers() {
        for url in ["https://8.8.8.8/", "https://web.example:8443/"] {
            let run =
                |policy: &str| site.run(caller, &["--policy", policy], &["curl", "-sSi", "--no-alpn", url]);
            let output = run(&reads);
            let printed = text(&output.stdout);
            let reason = "no rule of policy \\\"reads\\\" allows it";
            assert!(
                printed.starts_with("HTTP/1.1 403 Forbidden") && printed.contains(reason),
                "{caller:?} {url}: {printed} {}",
                text(&output.stderr)
            );
            // One line, also within TLS.
            let lines = text(&output.stderr).lines().filter(|line| line.contains("refused ")).count();
            assert_eq!(lines, 1, "{caller:?} {url}: {}", text(&output.stderr));
            let output = run(&joins);
            assert!(!output.status.success() && output.stdout.is_empty(), "{caller:?} {url}: {output:?}");
        }
        let curl = ["curl", "-sS", "http://8.8.8.8/"];
        let output = site.run(caller, &["--allow", "web.example"], &curl);
        let advice = "no --allow names it; --allow 8.8.8.8:80 allows it";
        assert!(text(&output.stdout).contains(advice), "{caller:?}: {output:?}");
    }
}

#[test]
fn gvisor_without_root_is_refused_and_runs_nothing() {
    hutch_testkit::require!(root, user_namespaces);
    let site = Site::new();
    for more in [&[][..], &["--allow", "web.example"]] {
        let options = [&["--isolation", "gvisor"], more].concat();
        let output = site.run(Caller::Ordinary, &options, &["echo", "ran"]);
        refused(&output, 125, &["--isolation gvisor needs root", "--isolation hutch"]);
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn invalid_policy_is_refused_by_the_name_of_its_field() {
    hutch_testkit::require!(root, user_namespaces);
    let site = Site::new();
    for (rules, named) in [
        ("    - {name: a, hosts: [\"*.com\"]}\n", "public suffix"),
        ("    - {name: a, hosts: [a.example], credentials: [x]}\n", "credentials"),
        ("    - {name: a}\n", "spec.egress.rules[0]: matches nothing"),
        ("    - {name: a, hosts: a.example}\n", "spec.egress.rules[0].hosts: invalid type: string"),
        (
            "    - {name: a, hosts: [\"a.example:443\"]}\n",
            "rules[0].hosts[0]: \"a.example:443\" is not a host name; a port",
        ),
        ("    - {name: a, hosts: [a.example], when: '1'}\n", "\"1\" is never true or false"),
        (
            "    - {name: a, hosts: [a.example], private: [fe80::/10]}\n",
            "rules[0].private[0]: fe80::/10 opens nothing",
        ),
        ("    - [a, [a.example], false]\n", "spec.egress.rules[0]: is a list"),
        ("    - {name: a, any: true, ports: []}\n", "spec.egress.rules[0].ports: is empty"),
        (
            "    - {name: a, any: true, decision: Deny, when: 'request.port == \"80\"'}\n",
            "rules[0].when: \"request.port == \\\"80\\\"\": request.port is a number",
        ),
        ("    - [\n", "bad.yaml"),
    ] {
        let file = policy(&site, "bad", "Enforce", rules);
        refused(&site.run(Caller::Ordinary, &["--policy", &file], &["true"]), 125, &["--policy", named]);
    }
    let file = policy(&site, "good", "Enforce", "    - {name: a, any: true}\n");
    let both = ["--policy", &file, "--allow", "a.example"];
    refused(&site.run(Caller::Ordinary, &both, &["true"]), 125, &["--policy", "--allow"]);
    // Of two rules about requests, the one that allows all of them counts.
    let rules =
        "    - {name: get, hosts: [a.example], http: [{methods: [GET]}]}\n    - {name: all, any: true}\n";
    let file = policy(&site, "useless", "Enforce", rules);
    let output = site.run(Caller::Ordinary, &["--policy", &file], &["true"]);
    let warned = "hutch: --policy: policy \"useless\": spec.egress.rules[0].http: has no effect: rule \"all\" allows all \
                  requests to a.example:443\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), warned));
    let file = site.folder.path().join("test.yaml");
    std::fs::write(&file, "apiVersion: policy.hutch.dev/v1alpha1\nkind: PolicyTest\n").expect("written");
    let test = ["--policy", &file.display().to_string()];
    refused(&site.run(Caller::Ordinary, &test, &["true"]), 125, &["is for `hutch policy test`"]);
    let missing = ["--policy", "/nonexistent/policy.yaml"];
    refused(&site.run(Caller::Ordinary, &missing, &["true"]), 125, &["/nonexistent/policy.yaml"]);
}

#[test]
fn flags_without_meaning_are_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let site = Site::new();
    for (options, named) in [
        (&["--allow", "*"][..], "any: true"),
        (&["--allow", "https://a.example/"], "of a URL, write the host alone"),
        (&["--allow", "10.0.0.0/8"], "`cidrs`"),
        (&["--allow", "a.example:0"], "port"),
        (&["--allow-private", "10.0.0.0/8"], "--allow"),
        (&["--allow", "a.example", "--allow-private", "10.0.0.1/8"], "write 10.0.0.0/8"),
        (&["--allow", "a.example", "--allow-private", "169.254.169.254"], "169.254.169.254/32 opens nothing"),
    ] {
        refused(&site.run(Caller::Root, options, &["true"]), 125, &[named]);
    }
}

#[test]
fn allowed_host_that_stays_closed_is_named_with_the_way_out() {
    hutch_testkit::require!(root, user_namespaces);
    let site = Site::new();
    let allow = ["localhost:8080", "127.0.0.1", "10.1.2.3:22", "169.254.169.254:80", "10.2.0.1", "a.example"];
    let mut options: Vec<&str> = allow.iter().flat_map(|host| ["--allow", host]).collect();
    options.extend(["--allow-private", "10.2.0.0/16"]);
    let output = site.run(Caller::Ordinary, &options, &["true"]);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 4, "{stderr}");
    for (line, (host, hint)) in lines.iter().zip([
        ("localhost:8080", "--allow-private"),
        ("127.0.0.1", "--allow-private"),
        ("10.1.2.3:22", "it is an address of a private network; --allow-private 10.1.2.3 opens it"),
        ("169.254.169.254:80", "which no rule opens"),
    ]) {
        assert!(line.starts_with(&format!("hutch: --allow {host} opens nothing: ")), "{line}");
        assert!(line.contains(hint), "{line}");
    }
}

#[test]
fn doctor_reports_whether_policies_can_open_hosts() {
    hutch_testkit::require!(root, user_namespaces);
    let site = Site::new();
    for caller in [Caller::Root, Caller::Ordinary] {
        let mut doctor = match caller {
            Caller::Ordinary => Command::new("setpriv"),
            _ => Command::new(site.folder.path().join("hutch")),
        };
        if matches!(caller, Caller::Ordinary) {
            doctor.args(["--reuid=1000", "--regid=1000", "--clear-groups"]);
            doctor.arg(site.folder.path().join("hutch"));
        }
        let lines = text(&doctor.arg("doctor").output().expect("hutch doctor").stdout);
        let report = doctor.arg("--json").output().expect("hutch doctor");
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
        let works = |caller| site.run(caller, &["--allow", "a.example"], &["true"]).status.success();
        assert_eq!(report["egress"], works(caller), "{caller:?}: {report}");
        assert_eq!(report["egressForOrdinaryUsers"], works(Caller::Ordinary), "{caller:?}: {report}");
        let yes = if works(caller) { "yes" } else { "no" };
        assert!(lines.contains(&format!("\negress (nft tproxy)         {yes}\n")), "{lines}");
    }
}
