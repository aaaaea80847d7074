//! Credential of a request.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Returns the secrets in `Authorization`: a bearer token, or both halves of Basic, the longer half first.
/// Old clients can only put a credential into the URL, where it becomes either half. Empty if the header
/// occurs twice.
pub(crate) fn shown(headers: &HeaderMap) -> Vec<String> {
    read(headers).unwrap_or_default()
}

fn read(headers: &HeaderMap) -> Option<Vec<String>> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(only), None) = (given.next(), given.next()) else { return None };
    let (scheme, secret) = only.to_str().ok()?.split_once(' ')?;
    let secret = secret.trim();
    if secret.is_empty() {
        return None;
    }
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(vec![secret.to_owned()]);
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(secret).ok()?).ok()?;
    let (user, password) = pair.split_once(':')?;
    let mut halves = vec![user.to_owned(), password.to_owned()];
    halves.retain(|half| !half.is_empty());
    halves.sort_by_key(|half| std::cmp::Reverse(half.len()));
    Some(halves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(value: &str) -> Vec<String> {
        shown(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]))
    }

    proptest! {
        #[test]
        fn any_header_value_yields_at_most_two_secrets(value in "[ -~]{0,80}") {
            prop_assert!(of(&value).len() <= 2);
        }

        #[test]
        fn basic_yields_both_halves(user in "[!-9;-~]{1,40}", password in "[!-~]{1,40}") {
            let halves = of(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))));
            prop_assert!(halves.contains(&user) && halves.contains(&password));
        }

        #[test]
        fn bearer_yields_the_whole_token(token in "[!-~]{1,80}") {
            prop_assert_eq!(of(&format!("BEARER {token}")), [token]);
        }
    }
}
