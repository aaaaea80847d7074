//! Hostile tests of the paths and ranges of a request.

use hyper::Uri;

use super::range::{Wanted, wanted};
use super::target;

/// Parses the path and the parameters of a URI; and a range, for files of several sizes.
pub(crate) fn targets(bytes: &[u8]) {
    if let Ok(uri) = Uri::try_from([b"/v1/".as_slice(), bytes].concat()) {
        if let Some(clean) = target::cleaned(uri.path()) {
            assert_eq!(target::cleaned(&clean), None, "{uri}");
        }
        if let Some((route, path)) = target::route(uri.path()) {
            assert!(!target::methods(route).is_empty());
            let _ = target::decode(path);
        }
        let _ = (target::parameter(&uri, "path"), target::yes(&uri, "follow"), target::mode(&uri, 0o644));
    }
    let Ok(header) = std::str::from_utf8(bytes) else { return };
    for size in [0, 1, 100, u64::MAX] {
        if let Wanted::Part(first, last) = wanted(header, size) {
            assert!(first <= last && last < size, "{header:?} of {size}");
        }
    }
}
