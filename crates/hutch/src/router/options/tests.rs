use std::collections::BTreeMap;

use super::*;

fn read(words: &[&str], environment: &[(&str, &str)], file: Option<&str>) -> Result<Wanted, String> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let environment: BTreeMap<&str, &str> = environment.iter().copied().collect();
    Options::read(
        &words,
        |name| environment.get(name).map(|value| (*value).to_owned()),
        |_| file.map(str::to_owned).ok_or_else(|| std::io::ErrorKind::NotFound.into()),
    )
}

fn options(words: &[&str], environment: &[(&str, &str)], file: Option<&str>) -> Options {
    let all = [&["--authz-mode=allow-all"], words].concat();
    match read(&all, environment, file) {
        Ok(Wanted::Run(options)) => *options,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn every_flag_is_documented() {
    let documented = include_str!("../../../../../docs/router.md");
    for (name, ..) in FLAGS.iter().filter(|(name, ..)| *name != "h") {
        assert!(documented.contains(&format!("`{name}`")), "docs/router.md does not tell of --{name}");
    }
}

#[test]
fn defaults_are_as_documented() {
    let options = options(&[], &[], None);
    assert_eq!(options.http.map(|address| address.to_string()).as_deref(), Some(":8080"));
    assert_eq!(options.metrics.map(|address| address.to_string()).as_deref(), Some(":9090"));
    assert_eq!(options.health.map(|address| address.to_string()).as_deref(), Some(":8081"));
    assert!(options.https.is_none() && options.access_log && options.cache && !options.wake_on_connect);
    assert_eq!(
        (options.proxy_timeout, options.response_header_timeout, options.body_limit),
        (None, None, None)
    );
    assert_eq!(options.shutdown_timeout, Duration::from_secs(30));
    assert_eq!(options.retry_delays, [200, 400, 800].map(Duration::from_millis));
}

#[test]
fn command_line_overrides_file_and_file_overrides_environment() {
    let file = Some("proxy-timeout: 2s\nhttp-bind-address: \":1\"\n");
    let environment = [("PROXY_TIMEOUT_SECONDS", "1.5"), ("SANDBOX_ROUTER_CONFIG", "f")];
    let timeout = |words: &[&str], environment: &[(&str, &str)], file| {
        options(words, environment, file).proxy_timeout.map(|time| time.as_secs_f64())
    };
    assert_eq!(timeout(&[], &environment[..1], None), Some(1.5));
    assert_eq!(timeout(&[], &environment, file), Some(2.0));
    assert_eq!(timeout(&["--proxy-timeout=3s"], &environment, file), Some(3.0));
    assert_eq!(timeout(&["--config", "g"], &[], file), Some(2.0));
}

#[test]
fn modes() {
    assert_eq!(options(&[], &[], None).mode, Mode::AllowAll);
    let review = options(
        &["--authz-mode=tokenreview", "--authz-tokenreview-ttl=5s", "--authz-tokenreview-audiences=a, b,"],
        &[],
        None,
    );
    let expected = Mode::TokenReview {
        ttl: Duration::from_secs(5),
        cache_size: 2048,
        audiences: vec!["a".into(), "b".into()],
    };
    assert_eq!(review.mode, expected);
    let scoped = options(&["--authz-mode=scoped-token", "--authz-scoped-token-secret-file=k"], &[], None);
    assert_eq!(scoped.mode, Mode::ScopedToken("k".into()));
    let retries = ["--upstream-max-retries=5", "--upstream-retry-max-delay=500ms"];
    assert_eq!(
        options(&retries, &[], None).retry_delays,
        [200, 400, 500, 500, 500].map(Duration::from_millis)
    );
    assert!(options(&["--upstream-max-retries=0"], &[], None).retry_delays.is_empty());
}

#[test]
fn missing_mode_is_an_error() {
    let mistake = read(&[], &[], None).unwrap_err();
    assert!(mistake.starts_with("--authz-mode: is not set") && mistake.contains("allow-all"), "{mistake}");
}

#[test]
fn mistakes_are_one_line_that_names_the_flag() {
    for (words, named) in [
        (&["--authz-mode=none"][..], "--authz-mode"),
        (&["--authz-mode=scoped-token"], "--authz-scoped-token-secret-file"),
        (
            &["--authz-mode=tokenreview", "--authz-tokenreview-require-token=false"],
            "--authz-tokenreview-require-token",
        ),
        (&["--authz-tokenreview-ttl=0"], "--authz-tokenreview-ttl"),
        (&["--authz-tokenreview-cache-size=0"], "--authz-tokenreview-cache-size"),
        (&["--http-bind-address="], "--https-bind-address"),
        (&["--http-bind-address=8080"], "--http-bind-address"),
        (&["--https-bind-address=:1"], "--tls-"),
        (&["--https-bind-address=:1", "--tls-cert-file=c"], "--tls-key-file"),
        (&["--mtls-mode=required"], "--https-bind-address"),
        (
            &["--mtls-mode=required", "--https-bind-address=:1", "--tls-cert-file=c", "--tls-key-file=k"],
            "--tls-client-ca-file",
        ),
        (&["--mtls-mode=maybe"], "--mtls-mode"),
        (&["--proxy-timeout=0s"], "--proxy-timeout"),
        (&["--response-header-timeout=-1s"], "--response-header-timeout"),
        (&["--shutdown-timeout=soon"], "--shutdown-timeout"),
        (&["--max-request-body-bytes=-1"], "--max-request-body-bytes"),
        (&["--upstream-max-retries=-1"], "--upstream-max-retries"),
        (&["--upstream-max-retries=1000000"], "--upstream-max-retries"),
        (&["--enable-tracing=maybe"], "--enable-tracing"),
        (&["--enable-otel-metrics"], "--enable-otel-metrics"),
        (&["--cache-enabled=maybe"], "--cache-enabled"),
        (&["--zap-log-level=loud"], "--zap-log-level"),
        (&["--config=nowhere"], "nowhere"),
    ] {
        let all = [&["--authz-mode=allow-all"], words].concat();
        let mistake = read(&all, &[], None).map(|_| "taken").unwrap_err();
        assert!(mistake.contains(named) && !mistake.contains('\n'), "{words:?}: {mistake}");
    }
    let mistake = read(&["--authz-mode=allow-all"], &[("PROXY_TIMEOUT_SECONDS", "soon")], None).unwrap_err();
    assert!(mistake.starts_with("PROXY_TIMEOUT_SECONDS: "), "{mistake}");
    let mistake = read(&["--config=f"], &[], Some("authz-mode: x")).unwrap_err();
    assert!(mistake.starts_with("f: authz-mode: "), "{mistake}");
}

#[test]
fn tracing_is_off_without_flag_or_variable() {
    let traced = |words: &[&str], variables: &[(&str, &str)]| {
        let all = [&["--authz-mode=allow-all"], words].concat();
        let Ok(Wanted::Run(options)) = read(&all, variables, None) else { panic!("{words:?}") };
        options.tracing
    };
    let (all, own) = (
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")],
        [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4317")],
    );
    assert!(!traced(&[], &[]) && !traced(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]));
    assert!(!traced(&[], &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:4317")]));
    assert!(traced(&["--enable-tracing"], &[]) && traced(&[], &all) && traced(&[], &own));
    assert!(!traced(&["--enable-tracing=false"], &all), "the flag counts more");
}

#[test]
fn help_and_version_need_no_mode() {
    assert!(matches!(read(&["--version"], &[], None), Ok(Wanted::Version)));
    let Ok(Wanted::Help(text)) = read(&["-h"], &[], None) else { panic!("no help") };
    assert!(FLAGS.iter().all(|(name, ..)| text.contains(&format!("--{name}"))), "{text}");
}
