//! The warden: forks all jails of `hutch up`. See [`hutch_jail::warden`].

fn main() -> std::process::ExitCode {
    hutch_jail::warden::main()
}
