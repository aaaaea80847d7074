//! Random numbers in a copy of this memory. sandboxd takes its own from the kernel, which never repeats them. Other programs may
//! have generators in their memory, and would repeat what another copy gives out.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// Number of the field with the count of threads, after the state.
const THREADS: usize = 16;

/// Finds the processes below this folder of process information that are not this program, as `PID (NAME)`. One that cannot
/// be read counts as another.
///
/// # Errors
/// The folder or the own program cannot be read.
pub fn others(proc: &Path) -> io::Result<Vec<String>> {
    let own = std::fs::read_link(proc.join("self/exe"))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc)? {
        let (folder, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let is_process = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_process(&name) || std::fs::read_link(folder.join("exe")).is_ok_and(|program| program == own) {
            continue;
        }
        let Ok(stat) = std::fs::read_to_string(folder.join("stat")) else {
            // It has ended since the folder was read.
            if !folder.exists() {
                continue;
            }
            found.push(name.to_string_lossy().into_owned());
            continue;
        };
        let (program, rest) = stat.rsplit_once(')').unwrap_or((&stat, ""));
        let mut fields = rest.split_whitespace();
        // Other threads may run after the end of the first one.
        let has_ended =
            matches!(fields.next(), Some("Z" | "X")) && matches!(fields.nth(THREADS), None | Some("0" | "1"));
        if !has_ended {
            found.push(format!("{program})"));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn other_programs_are_found_unless_they_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let process = |name: &str, program: &str, stat: Option<&str>| {
            let at = folder.path().join(name);
            std::fs::create_dir(&at).unwrap();
            symlink(program, at.join("exe")).unwrap();
            if let Some(stat) = stat {
                std::fs::write(at.join("stat"), stat).unwrap();
            }
        };
        process("self", "/.hutch/sandboxd", None);
        process("1", "/.hutch/sandboxd", Some("1 (sandboxd) S 0"));
        process("sys", "/bin/other", None);
        assert_eq!(others(folder.path()).unwrap(), [""; 0]);
        process("7", "/usr/bin/python3", Some("7 (py) (thon) S 1"));
        process("8", "/usr/bin/python3", Some("8 (python3) Z 1"));
        process("9", "/usr/bin/python3", None);
        let fields = |threads: u32| format!("(python3) Z 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 12");
        process("10", "/absent", Some(&format!("10 {}", fields(2))));
        process("11", "/absent", Some(&format!("11 {}", fields(1))));
        assert_eq!(others(folder.path()).unwrap(), ["10 (python3)", "7 (py) (thon)", "9"]);
        assert!(others(Path::new("/absent")).is_err());
    }

    #[test]
    fn program_of_the_test_sees_itself() {
        let found = others(Path::new("/proc")).unwrap();
        let own = format!("{} (", std::process::id());
        assert!(found.iter().all(|process| !process.starts_with(&own)), "{found:?}");
    }
}
