//! The header `WWW-Authenticate` of a registry.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// Maximum bytes of one header that is read.
const MAX_HEADER: usize = 8 << 10;
/// Maximum challenges that are read.
const MAX_CHALLENGES: usize = 8;

/// How a registry wants a request to be authorized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

/// Reads all challenges of an answer. Unknown schemes are left out.
pub(crate) fn challenges(headers: &HeaderMap) -> Vec<Challenge> {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(parse).take(MAX_CHALLENGES).collect()
}

/// Reads a value: `Bearer realm="...",service="...", Basic realm="..."`.
pub(crate) fn parse(text: &str) -> Vec<Challenge> {
    let mut found: Vec<(String, Vec<(String, String)>)> = Vec::new();
    if text.len() > MAX_HEADER {
        return Vec::new();
    }
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (word, after) = token(rest);
        if word.is_empty() {
            break;
        }
        rest = after.trim_start_matches([' ', '\t']);
        match rest.strip_prefix('=') {
            // A parameter of the challenge before it.
            Some(after) => {
                let Some((value, after)) = value(after.trim_start_matches([' ', '\t'])) else { break };
                rest = after;
                if let Some((_, parameters)) = found.last_mut() {
                    parameters.push((word.to_ascii_lowercase(), value));
                }
            }
            None => found.push((word.to_ascii_lowercase(), Vec::new())),
        }
    }
    found.into_iter().filter_map(|(scheme, parameters)| challenge(&scheme, parameters)).collect()
}

fn challenge(scheme: &str, parameters: Vec<(String, String)>) -> Option<Challenge> {
    // Of a repeated parameter the first counts.
    let find = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    match scheme {
        "basic" => Some(Challenge::Basic),
        "bearer" => Some(Challenge::Bearer { realm: find("realm")?, service: find("service") }),
        _ => None,
    }
}

/// Splits off a token of HTTP.
fn token(text: &str) -> (&str, &str) {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let end = text.bytes().position(|b| !valid(b)).unwrap_or(text.len());
    text.split_at(end)
}

/// Splits off a token or a quoted text.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return Some((value.to_owned(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Challenge {
        Challenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) }
    }

    #[test]
    fn challenges_of_registries_are_read() {
        for (text, expected) in [
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a:pull""#,
                vec![bearer("https://auth.docker.io/token", Some("registry.docker.io"))],
            ),
            (r#"Basic realm="Registry Realm""#, vec![Challenge::Basic]),
            (r#"basic"#, vec![Challenge::Basic]),
            (
                r#"Basic realm="a, Bearer realm=x", BEARER realm = "y""#,
                vec![Challenge::Basic, bearer("y", None)],
            ),
            (r#"Negotiate, Bearer realm="a\"b""#, vec![bearer("a\"b", None)]),
            (r#"Bearer service="x""#, vec![]),
            (r#"Bearer realm="never closed"#, vec![]),
            ("", vec![]),
            ("=,=", vec![]),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        assert_eq!(parse(&format!("Bearer realm=\"{}\"", "x".repeat(9000))), []);
    }
}
