//! Placeholders of credentials: text of the shape that client libraries check.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::credential::Shape;

/// Returns a placeholder with at least 128 random bits; the id of an access key of AWS has room for 80. `draw` returns a
/// random number below its argument.
pub fn placeholder(shape: Shape, draw: &mut dyn FnMut(usize) -> usize) -> String {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = |count: usize, letters: &[u8]| -> String {
        (0..count).map(|_| char::from(letters[draw(letters.len())])).collect()
    };
    match shape {
        Shape::Generic => format!("hutch_{}", random(34, LETTERS)),
        Shape::GitHub => format!("ghp_{}", random(36, LETTERS)),
        Shape::OpenAI => format!("sk-{}", random(48, LETTERS)),
        Shape::Anthropic => format!("sk-ant-api03-{}AA", random(93, LETTERS)),
        Shape::AwsAccessKeyId => format!("AKIA{}", random(16, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
        Shape::AwsSecretAccessKey => random(40, LETTERS),
        Shape::Jwt => {
            let claims = format!(r#"{{"sub":"sandbox","jti":"{}","exp":4102444800}}"#, random(22, LETTERS));
            let [header, claims] =
                [r#"{"alg":"HS256","typ":"JWT"}"#, &claims].map(|part| URL_SAFE_NO_PAD.encode(part));
            format!("{header}.{claims}.{}", random(43, LETTERS))
        }
    }
}

/// Returns the placeholder that belongs to a stream of random bytes, which `block` returns in blocks: the same bytes yield the
/// same placeholder.
pub fn derived_placeholder(shape: Shape, mut block: impl FnMut(u32) -> Vec<u8>) -> String {
    let mut bytes = Vec::new().into_iter();
    let mut number = 0_u32;
    placeholder(shape, &mut |below| {
        loop {
            let Some(byte) = bytes.next() else {
                bytes = block(number).into_iter();
                number += 1;
                continue;
            };
            // The bytes beyond the last multiple would favor the first letters.
            if usize::from(byte) < 256 - 256 % below {
                break usize::from(byte) % below;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_has_the_shape_that_libraries_check() {
        for (shape, prefix, length) in [
            (Shape::Generic, "hutch_", 40),
            (Shape::GitHub, "ghp_", 40),
            (Shape::OpenAI, "sk-", 51),
            (Shape::Anthropic, "sk-ant-api03-", 108),
            (Shape::AwsAccessKeyId, "AKIA", 20),
            (Shape::AwsSecretAccessKey, "", 40),
        ] {
            let derived = |first: u8| {
                derived_placeholder(shape, |block| (0..32).map(|at| first ^ (at * 7 + block as u8)).collect())
            };
            let one = derived(1);
            assert!(one.starts_with(prefix) && one.len() == length, "{shape:?}: {one}");
            assert_eq!(one, derived(1));
            assert_ne!(one, derived(2));
        }
        let token = placeholder(Shape::Jwt, &mut |below| below - 1);
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&claims).unwrap()["exp"].is_number());
    }
}
