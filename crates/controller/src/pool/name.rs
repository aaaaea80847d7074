//! Names of pooled Sandboxes. They are generated here and not by the server: an unanswered creation is repeated under the
//! same name, so that it cannot succeed twice.

use hutch_serve::Ambient;

/// Alphabet of the server's generated names: no vowels, so no words, and no letters that look alike.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Number of random letters.
const RANDOM_BYTES: usize = 5;
/// Maximum length of a name, so that it is a DNS label.
const NAME_BYTES: usize = 63;

/// Generates `<pool>-<five letters>`, with the pool's name cut to the maximum length.
pub(super) fn member_name(pool: &str, ambient: &Ambient) -> String {
    let base = format!("{pool}-");
    let base = &base[..base.floor_char_boundary(NAME_BYTES - RANDOM_BYTES)];
    let random = (0..RANDOM_BYTES).map(|_| char::from(LETTERS[ambient.below(LETTERS.len())]));
    base.chars().chain(random).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_differ() {
        let name = member_name("p", &Ambient::default());
        assert!(name.starts_with("p-") && name.len() == 7, "{name}");
        assert_ne!(name, member_name("p", &Ambient::default()), "one in fourteen million");
        let long = member_name(&"x".repeat(253), &Ambient::default());
        assert_eq!((long.len(), &long[..58]), (63, "x".repeat(58).as_str()));
    }
}
