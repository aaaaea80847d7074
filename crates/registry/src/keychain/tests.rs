use super::*;

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

async fn users(keychain: &Keychain, registry: &str, repository: &str) -> Vec<String> {
    let found = keychain.find(registry, repository).await.unwrap();
    let user = |credential| match credential {
        Credential::Basic { user, .. } => user,
        other => format!("{other:?}"),
    };
    found.into_iter().map(user).collect()
}

#[tokio::test]
async fn most_specific_path_of_all_secrets_comes_first() {
    let first = format!(
        r#"{{"auths":{{"ghcr.io":{{"auth":"{}"}},"*.example.com":{{"username":"wild","password":"x"}}}}}}"#,
        encoded("host:x")
    );
    let second = format!(
        r#"{{"auths":{{"https://ghcr.io/v2/org":{{"auth":"{}"}},"https://index.docker.io/v1/":{{"auth":"{}"}}}}}}"#,
        encoded("org:x"),
        encoded("hub:p:w")
    );
    let keychain = Keychain::from_secrets([("a", first.as_bytes()), ("b", second.as_bytes())]).unwrap();
    assert_eq!(users(&keychain, "ghcr.io", "org/app").await, ["org", "host"]);
    assert_eq!(users(&keychain, "ghcr.io", "organization/app").await, ["host"]);
    assert_eq!(users(&keychain, "docker.io", "library/x").await, ["hub"]);
    assert_eq!(users(&keychain, "a.example.com", "x").await, ["wild"]);
    for host in
        ["a.b.example.com", "example.com", "a.example.com.evil.example", "a.example.com:5000", "ghcr.io:443"]
    {
        assert_eq!(users(&keychain, host, "org/app").await, [""; 0], "{host}");
    }
    let hub = keychain.find("docker.io", "library/x").await.unwrap();
    assert_eq!(hub, [Credential::Basic { user: "hub".into(), password: Secret::new("p:w".into()) }]);
}

#[tokio::test]
async fn helpers_of_a_secret_are_never_run() {
    let text = br#"{"credsStore":"../../bin/sh","credHelpers":{"ghcr.io":"no-such-helper"}}"#;
    let keychain = Keychain::from_secrets([("s", &text[..])]).unwrap();
    assert_eq!(users(&keychain, "ghcr.io", "x").await, [""; 0]);
}

#[test]
fn errors_and_debug_show_no_content() {
    for text in [
        r#"{"auths":{"h":{"auth":"hunter2"}}}"#,
        r#"{"auths": "hunter2"}"#,
        r#"{"auths":{"h":{"auth":hunter2}}}"#,
    ] {
        let error = Keychain::from_secrets([("s", text.as_bytes())]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let text = format!(r#"{{"auths":{{"h":{{"auth":"{}"}}}}}}"#, encoded("u:hunter2"));
    let keychain = Keychain::from_secrets([("s", text.as_bytes())]).unwrap();
    assert!(!format!("{keychain:?}").contains("hunter2"));
}

#[tokio::test]
async fn tokens_of_other_kinds_are_read() {
    let text = br#"{"auths":{"a":{"identitytoken":"i"},"b":{"registrytoken":"r"},"c":{}}}"#;
    let keychain = Keychain::from_secrets([("s", &text[..])]).unwrap();
    let find = async |host| keychain.find(host, "x").await.unwrap();
    assert_eq!(find("a").await, [Credential::Identity(Secret::new("i".into()))]);
    assert_eq!(find("b").await, [Credential::Bearer(Secret::new("r".into()))]);
    assert_eq!(find("c").await, []);
}
