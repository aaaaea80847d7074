//! Memory for the values of JSON: of many small ones, some hundred times the bytes.

/// Memory of a body from which on only some of a sandbox are read at a time.
pub(crate) const MUCH: usize = 1 << 20;
/// Bytes for an object, and for another value.
const OBJECT: usize = 700;
const VALUE: usize = 64;

/// Returns the bytes that JSON needs when it is read, about. No text of JSON has a line break.
pub(crate) fn memory(body: &[u8]) -> usize {
    let (mut bytes, mut in_text, mut escaped) = (0, false, false);
    for byte in body {
        match byte {
            b'\n' | b'\r' => {
                (in_text, escaped) = (false, false);
                bytes += VALUE;
            }
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' => bytes += OBJECT,
            b'[' | b',' => bytes += VALUE,
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_need_many_times_their_bytes() {
        assert_eq!(memory(b"{}"), OBJECT);
        assert_eq!(memory(br#"{"a": [1, 2], "b": "{[,\"{"}"#), OBJECT + 3 * VALUE);
        let objects = br#"{"":0},"#.repeat(10_000);
        assert!(memory(&objects) > 100 * objects.len());
        assert!(memory(&b"a".repeat(1 << 20)) < MUCH);
    }
}
