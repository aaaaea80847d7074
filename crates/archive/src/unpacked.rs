//! Bounds what packed content unpacks to.

use std::io::{self, Read};

/// Bytes to which content may unpack however small it is.
const MIN_BYTES: u64 = 256 << 20;
/// Bytes to which each byte of larger content may unpack. Programs and texts take 2 to 20; runs of zeros up to 1,032 with
/// gzip, and 30,000 with Zstandard.
const MAX_RATIO: u64 = 200;

/// Reads unpacked content, up to the bytes to which it may unpack.
#[derive(Debug)]
pub struct Unpacked<R> {
    inner: R,
    left: u64,
}

impl<R> Unpacked<R> {
    /// Bounds what content of `packed` bytes unpacks to. `inner` unpacks it.
    pub fn new(inner: R, packed: u64) -> Unpacked<R> {
        Unpacked { inner, left: packed.saturating_mul(MAX_RATIO).max(MIN_BYTES) }
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            let bytes = MIN_BYTES >> 20;
            let text =
                format!("it unpacks to more than {MAX_RATIO} times its size, and more than {bytes} MiB");
            io::Error::new(io::ErrorKind::FileTooLarge, text)
        })?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_may_unpack_to_a_multiple_of_its_size_or_to_a_fixed_size() {
        for (size, most) in [(0, MIN_BYTES), (1000, MIN_BYTES), (2 << 20, 400 << 20), (u64::MAX, u64::MAX)] {
            assert_eq!(Unpacked::new(io::empty(), size).left, most, "{size}");
        }
        let mut ends = Unpacked { inner: &b"abc"[..], left: 3 };
        assert_eq!(ends.read(&mut [0; 8]).unwrap(), 3);
        assert_eq!(ends.read(&mut [0; 8]).unwrap(), 0);
        let over = Unpacked { inner: &b"abc"[..], left: 2 }.read(&mut [0; 8]).unwrap_err();
        assert_eq!(over.kind(), io::ErrorKind::FileTooLarge);
    }
}
