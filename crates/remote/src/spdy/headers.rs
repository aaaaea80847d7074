//! Header blocks: one zlib stream for each direction of a connection, with a preset dictionary.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::dictionary;
use super::frame::Fault;

/// Maximum header block after decompression; bounds the expansion of a small frame.
const MAX_BLOCK: usize = 32 * 1024;
/// Maximum fields of a block. Port-forward sends three.
const MAX_FIELDS: usize = 64;

/// Fields of a stream, names in lower case.
pub(crate) type Fields = Vec<(String, String)>;

/// Decodes the peer's header blocks, in order of arrival.
pub(crate) struct Decoder {
    zlib: Decompress,
    output: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self { zlib: Decompress::new(true), output: vec![0; MAX_BLOCK + 1] }
    }

    pub(crate) fn decode(&mut self, mut block: &[u8]) -> Result<Fields, Fault> {
        let mut length = 0;
        while !block.is_empty() {
            let (read, written) = (self.zlib.total_in(), self.zlib.total_out());
            let step = self.zlib.decompress(block, &mut self.output[length..], FlushDecompress::Sync);
            let consumed = (self.zlib.total_in() - read) as usize;
            length += (self.zlib.total_out() - written) as usize;
            block = block.get(consumed..).unwrap_or_default();
            match step {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.zlib
                        .set_dictionary(&dictionary())
                        .map_err(|_| Fault::Headers("foreign dictionary"))?;
                }
                Err(_) => return Err(Fault::Headers("not a zlib stream")),
                Ok(Status::StreamEnd) => return Err(Fault::Headers("the zlib stream ends")),
                _ if length > MAX_BLOCK => return Err(Fault::Headers("too long")),
                Ok(Status::BufError) if consumed == 0 => return Err(Fault::Headers("not a zlib stream")),
                Ok(_) => {}
            }
        }
        parse(&self.output[..length])
    }
}

fn parse(mut block: &[u8]) -> Result<Fields, Fault> {
    const SHORT: Fault = Fault::Headers("shorter than it says");
    fn number(block: &mut &[u8]) -> Result<usize, Fault> {
        let (four, rest) = block.split_first_chunk::<4>().ok_or(SHORT)?;
        *block = rest;
        Ok(u32::from_be_bytes(*four) as usize)
    }
    fn text(block: &mut &[u8]) -> Result<String, Fault> {
        let length = number(block)?;
        let (text, rest) = block.split_at_checked(length).ok_or(SHORT)?;
        *block = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Fault::Headers("not UTF-8"))
    }
    let count = number(&mut block)?;
    if count > MAX_FIELDS {
        return Err(Fault::Headers("too many fields"));
    }
    let mut fields = Vec::with_capacity(count);
    for _ in 0..count {
        let name = text(&mut block)?.to_ascii_lowercase();
        fields.push((name, text(&mut block)?));
    }
    Ok(fields)
}

/// Encodes the server's header blocks, in sending order.
pub(crate) struct Encoder {
    zlib: Compress,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        let mut zlib = Compress::new(Compression::fast(), true);
        // Fails only after bytes were compressed, and none were yet.
        let _ = zlib.set_dictionary(&dictionary());
        Self { zlib }
    }

    pub(crate) fn encode(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = Vec::new();
        plain.extend_from_slice(&(fields.len() as u32).to_be_bytes());
        for text in fields.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        let mut block = Vec::with_capacity(plain.len() + 64);
        let start = self.zlib.total_in();
        loop {
            let rest = &plain[(self.zlib.total_in() - start) as usize..];
            // Never an error: the stream is not finished, and a full buffer grows below.
            let _ = self.zlib.compress_vec(rest, &mut block, FlushCompress::Sync);
            if block.len() < block.capacity() {
                return block;
            }
            block.reserve(block.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dictionary::ADLER32;
    use super::*;

    #[test]
    fn the_dictionary_has_the_checksum_of_spdy_3() {
        assert_eq!(dictionary().len(), 1423);
        assert_eq!(Compress::new(Compression::fast(), true).set_dictionary(&dictionary()).unwrap(), ADLER32);
    }

    #[test]
    fn blocks_share_one_zlib_stream() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        for n in 0..50 {
            let value = "x".repeat(n * 7);
            let block = encoder.encode(&[("streamType", "data"), ("port", "8080"), ("requestid", &value)]);
            let fields = decoder.decode(&block).unwrap();
            assert_eq!(fields[0], ("streamtype".into(), "data".into()));
            assert_eq!(fields[2].1, value);
        }
    }

    #[test]
    fn a_block_that_expands_too_far_is_refused() {
        let mut encoder = Encoder::new();
        let block = encoder.encode(&[("a", &"0".repeat(MAX_BLOCK))]);
        assert!(block.len() < 1000, "{}", block.len());
        assert_eq!(Decoder::new().decode(&block), Err(Fault::Headers("too long")));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for plain in [vec![0, 0, 0, 1], vec![0, 0, 0, 1, 255, 255, 255, 255, 1], vec![255; 4], vec![0; 3]] {
            assert!(parse(&plain).is_err(), "{plain:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_input_is_decoded_or_refused(blocks in proptest::collection::vec(proptest::collection::vec(0u8.., 0..200), 1..5)) {
            let mut decoder = Decoder::new();
            for block in blocks {
                let _ = decoder.decode(&block);
            }
        }
    }
}
