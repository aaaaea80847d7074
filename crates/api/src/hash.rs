//! The hash of names that label values hold.

/// FNV-1a of 32 bits over the name's UTF-8 bytes, as exactly eight lower-case hex digits.
///
/// It is a label value, not a security boundary: hashes may collide, so the owner reference always decides.
pub fn name_hash(name: &str) -> String {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::name_hash;

    #[test]
    fn published_vectors() {
        for (name, hash) in [
            ("", "811c9dc5"),
            ("a", "e40c292c"),
            ("default", "933b5bde"),
            ("my-sandbox", "374de8f5"),
            ("python-sandbox-pool", "00375482"),
        ] {
            assert_eq!(name_hash(name), hash, "{name}");
        }
    }
}
