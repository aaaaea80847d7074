//! Whatever reads bytes of a client, each as one function of any bytes: it neither panics nor runs without end.

use std::path::Path;

/// Bodies of calls: frames and messages.
pub fn rpc(bytes: &[u8]) {
    crate::rpc::hostile::bodies(bytes);
}

/// Paths, parameters and ranges.
pub fn rest(bytes: &[u8]) {
    crate::rest::hostile::targets(bytes);
}

/// The body of `/execute`, and a command line.
pub fn execute(bytes: &[u8]) {
    crate::legacy::execute::any_body(bytes);
    if let Ok(line) = std::str::from_utf8(bytes) {
        let _ = crate::shlex::split(line);
    }
}

/// A tar stream, unpacked into a folder that is made for it; nothing beside that folder changes.
///
/// # Panics
/// When something was made elsewhere, or no folder can be had.
pub fn archive(bytes: &[u8]) {
    let folder = std::env::temp_dir().join(format!("hutch-hostile-{}", std::process::id()));
    let base = folder.join("base");
    std::fs::create_dir_all(&base).expect("a folder");
    let root = crate::files::Root::open(&base).expect("a base folder");
    let _ = crate::archive::unpack(&root, Path::new("to"), bytes);
    let beside = std::fs::read_dir(&folder).expect("a folder").count();
    std::fs::remove_dir_all(&folder).expect("removed");
    assert_eq!(beside, 1);
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("sandboxd_rpc", super::rpc);
        feed("sandboxd_rest", super::rest);
        feed("sandboxd_execute", super::execute);
        feed("sandboxd_archive", super::archive);
    }
}
