//! Names of members. Made here and not by the server: a creation whose answer was lost is asked for again under the same
//! name, so that it cannot happen twice.

use hutch_serve::Ambient;

/// What the server's own generated names end in: no vowels, so no words, and nothing that looks like something else.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters at the end.
const RANDOM_BYTES: usize = 5;
/// Longest name, so that it is good for a DNS label.
const NAME_BYTES: usize = 63;

/// `<pool>-<five letters>`, the pool's name cut where the whole would be too long.
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
