//! Hostile tests of the parsers of client input: for any bytes they neither panic nor loop.

use std::path::Path;

/// Parses bodies of calls: frames and messages.
pub fn rpc(bytes: &[u8]) {
    crate::rpc::hostile::bodies(bytes);
}

/// Parses paths, parameters and ranges.
pub fn rest(bytes: &[u8]) {
    crate::rest::hostile::targets(bytes);
}

/// Parses the body of `/execute`, and a command line.
pub fn execute(bytes: &[u8]) {
    crate::legacy::execute::any_body(bytes);
    if let Ok(line) = std::str::from_utf8(bytes) {
        let _ = crate::shlex::split(line);
    }
}

/// Unpacks a tar stream into a new folder; nothing beside that folder changes.
///
/// # Panics
/// If something was created elsewhere, or no folder can be created.
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
    fn any_input_is_handled() {
        feed("sandboxd_rpc", super::rpc);
        feed("sandboxd_rest", super::rest);
        feed("sandboxd_execute", super::execute);
        feed("sandboxd_archive", super::archive);
    }
}
