//! Values of `--mount`.

use std::path::PathBuf;

/// A value of `--mount`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountArgument {
    pub(crate) source: PathBuf,
    /// Without one, the path is the same inside.
    pub(crate) target: Option<PathBuf>,
    pub(crate) read_only: bool,
}

/// Parses `SRC[:DST][:ro]`.
pub(crate) fn parse(text: &str) -> Result<MountArgument, String> {
    let wrong = || format!("`{text}` is not SRC[:DST][:ro], such as /data:/data:ro; DST is absolute");
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, mode) = match parts[..] {
        [source] => (source, None, "rw"),
        [source, mode @ ("ro" | "rw")] => (source, None, mode),
        [source, target] => (source, Some(target), "rw"),
        [source, target, mode @ ("ro" | "rw")] => (source, Some(target), mode),
        _ => return Err(wrong()),
    };
    if source.is_empty() || target.is_some_and(|target| !target.starts_with('/')) {
        return Err(wrong());
    }
    Ok(MountArgument { source: source.into(), target: target.map(PathBuf::from), read_only: mode == "ro" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_the_flag() {
        let parsed = |text: &str| {
            let MountArgument { source, target, read_only } = parse(text).unwrap();
            (source.display().to_string(), target.map(|target| target.display().to_string()), read_only)
        };
        assert_eq!(parsed("/a"), ("/a".to_owned(), None, false));
        assert_eq!(parsed("a:ro"), ("a".to_owned(), None, true));
        assert_eq!(parsed("a:/b"), ("a".to_owned(), Some("/b".to_owned()), false));
        assert_eq!(parsed("a:/b:ro"), ("a".to_owned(), Some("/b".to_owned()), true));
        for wrong in ["", ":/b", "a:b", "a:/b:rx", "a:/b:ro:ro", "a:", "a::ro"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
