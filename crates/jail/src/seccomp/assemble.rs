//! Turns a table of answers into a classic BPF program, at compile time.

use std::io;

use libc::sock_filter;

use super::table::{self, Answer, TABLE};

/// Bound of the program. Jumps reach 255 instructions, and nearly all go to its end.
const MOST_INSTRUCTIONS: usize = 256;
/// Bound of the ranges of neighbouring numbers with the same answer.
const MOST_RANGES: usize = 192;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
/// Numbers from here on are of the x32 ABI (x86_64 only), or negative.
const FOREIGN_NUMBERS: u32 = 0x4000_0000;

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const MASK: u16 = 0x54;
const RETURN: u16 = 0x06;

/// The offset of the architecture in what a filter sees; the number is at 0.
const ARCHITECTURE: u32 = 4;

const fn errno(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}

/// The offset of the lower half of an argument. All arguments looked at are 32 bits wide to the kernel, which
/// ignores the upper half, and so must a filter.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Where a branch goes.
#[derive(Clone, Copy)]
enum To {
    /// The next instruction.
    Next,
    /// So many instructions after the next.
    Skip(u8),
    /// The code of an answer, which comes later and is there once.
    Answer(Answer),
}

/// A finished program.
///
/// Every instruction costs the install about 0.3 us, since the kernel compiles the program in several passes; so
/// all the code that gives the same answer is there once, and branches lead straight to it.
pub(super) struct Program {
    code: [sock_filter; MOST_INSTRUCTIONS],
    /// Where the two ways of a branch go, as long as that is not known.
    pending: [[To; 2]; MOST_INSTRUCTIONS],
    len: usize,
}

impl Program {
    /// Assembles the program for a table; a program too long is an error of compilation.
    pub(super) const fn assemble(table: &[Answer; TABLE]) -> Program {
        let nothing = sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS };
        let mut program = Program {
            code: [nothing; MOST_INSTRUCTIONS],
            pending: [[To::Next; 2]; MOST_INSTRUCTIONS],
            len: 0,
        };
        program.push(LOAD, ARCHITECTURE);
        program.branch(IF_EQUAL, NATIVE, To::Next, To::Answer(Answer::Kill));
        program.push(LOAD, 0);
        let ranges = Ranges::of(table);
        program.search(&ranges, 0, ranges.len);
        let mut at = 0;
        while at < Answer::ALL.len() {
            let answer = Answer::ALL[at];
            if program.leads_to(answer) {
                let start = program.len;
                program.answer(answer);
                program.link(answer, start);
            }
            at += 1;
        }
        program
    }

    const fn push(&mut self, code: u16, k: u32) {
        assert!(self.len < MOST_INSTRUCTIONS, "the filter is too long");
        self.code[self.len] = sock_filter { code, jt: 0, jf: 0, k };
        self.len += 1;
    }

    const fn branch(&mut self, code: u16, k: u32, yes: To, no: To) {
        self.pending[self.len] = [yes, no];
        self.push(code, k);
        let at = self.len - 1;
        if let To::Skip(distance) = yes {
            self.code[at].jt = distance;
        }
        if let To::Skip(distance) = no {
            self.code[at].jf = distance;
        }
    }

    /// The search tree over `ranges[from..to]`, which are two or more.
    const fn search(&mut self, ranges: &Ranges, from: usize, to: usize) {
        let middle = (from + to) / 2;
        let branch = self.len;
        let left_is_leaf = middle - from == 1;
        let right_is_leaf = to - middle == 1;
        let yes = if right_is_leaf { To::Answer(ranges.answers[middle]) } else { To::Next };
        let no = if left_is_leaf { To::Answer(ranges.answers[from]) } else { To::Next };
        self.branch(IF_AT_LEAST, ranges.starts[middle], yes, no);
        if !left_is_leaf {
            self.search(ranges, from, middle);
        }
        if !right_is_leaf {
            self.code[branch].jt = (self.len - branch - 1) as u8;
            self.search(ranges, middle, to);
        }
    }

    /// Whether a branch waits for the code of an answer.
    const fn leads_to(&self, answer: Answer) -> bool {
        let mut at = 0;
        while at < self.len {
            if is(self.pending[at][0], answer) || is(self.pending[at][1], answer) {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Points the branches that wait for an answer at its code.
    const fn link(&mut self, answer: Answer, start: usize) {
        let mut at = 0;
        while at < start {
            let distance = start - at - 1;
            if is(self.pending[at][0], answer) {
                assert!(distance <= u8::MAX as usize, "a branch of the filter is too far");
                self.code[at].jt = distance as u8;
            }
            if is(self.pending[at][1], answer) {
                assert!(distance <= u8::MAX as usize, "a branch of the filter is too far");
                self.code[at].jf = distance as u8;
            }
            at += 1;
        }
    }

    /// The code of an answer.
    const fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Allow => self.push(RETURN, libc::SECCOMP_RET_ALLOW),
            Answer::Refuse => self.push(RETURN, errno(libc::EPERM)),
            Answer::Unknown => self.push(RETURN, errno(libc::ENOSYS)),
            Answer::NoFamily => self.push(RETURN, errno(libc::EAFNOSUPPORT)),
            Answer::NoProtocol => self.push(RETURN, errno(libc::EPROTONOSUPPORT)),
            Answer::Kill => self.push(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
            Answer::Clone => self.refuse_bits(0, table::NAMESPACES),
            Answer::Unshare => self.refuse_bits(0, table::NAMESPACES | libc::CLONE_NEWTIME as u32),
            Answer::Ioctl => {
                self.push(LOAD, argument(1));
                self.branch(IF_EQUAL, libc::TIOCSTI as u32, To::Answer(Answer::Refuse), To::Next);
                self.branch(
                    IF_EQUAL,
                    table::TIOCLINUX,
                    To::Answer(Answer::Refuse),
                    To::Answer(Answer::Allow),
                );
            }
            Answer::Prctl => {
                self.push(LOAD, argument(0));
                let set_mm = libc::PR_SET_MM as u32;
                self.branch(IF_EQUAL, set_mm, To::Answer(Answer::Refuse), To::Answer(Answer::Allow));
            }
            Answer::Personality => self.personality(),
            Answer::Socket => self.socket(),
            Answer::SocketPair => {
                self.push(LOAD, argument(0));
                let local = libc::AF_UNIX as u32;
                self.branch(IF_EQUAL, local, To::Answer(Answer::Allow), To::Answer(Answer::NoFamily));
            }
            Answer::ModeSecond => self.refuse_bits(1, table::SET_ID_BITS),
            Answer::ModeThird => self.refuse_bits(2, table::SET_ID_BITS),
            Answer::Open => self.created_mode(1),
            Answer::OpenAt => self.created_mode(2),
        }
    }

    const fn refuse_bits(&mut self, index: u32, bits: u32) {
        self.push(LOAD, argument(index));
        self.branch(IF_ANY_BIT, bits, To::Answer(Answer::Refuse), To::Answer(Answer::Allow));
    }

    /// Linux as it is, without address randomisation (debuggers, some Lisps), or the question.
    const fn personality(&mut self) {
        self.push(LOAD, argument(0));
        self.branch(IF_EQUAL, 0, To::Answer(Answer::Allow), To::Next);
        self.branch(IF_EQUAL, libc::ADDR_NO_RANDOMIZE as u32, To::Answer(Answer::Allow), To::Next);
        self.branch(IF_EQUAL, 0xffff_ffff, To::Answer(Answer::Allow), To::Answer(Answer::Refuse));
    }

    /// Local sockets; TCP, UDP and ping over IP; the routing part of netlink, by which a C library lists addresses.
    /// The errors are those of a kernel built without the rest, which programs know how to take.
    const fn socket(&mut self) {
        const ALLOW: To = To::Answer(Answer::Allow);
        self.push(LOAD, argument(0));
        self.branch(IF_EQUAL, libc::AF_UNIX as u32, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::AF_INET as u32, To::Skip(4), To::Next);
        self.branch(IF_EQUAL, libc::AF_INET6 as u32, To::Skip(3), To::Next);
        self.branch(IF_EQUAL, libc::AF_NETLINK as u32, To::Next, To::Answer(Answer::NoFamily));
        self.push(LOAD, argument(2));
        self.branch(IF_EQUAL, libc::NETLINK_ROUTE as u32, ALLOW, To::Answer(Answer::NoProtocol));
        // IP: the type without its flags, then the protocol.
        self.push(LOAD, argument(1));
        self.push(MASK, 0xf);
        self.branch(IF_EQUAL, libc::SOCK_STREAM as u32, To::Skip(1), To::Next);
        self.branch(IF_EQUAL, libc::SOCK_DGRAM as u32, To::Next, To::Answer(Answer::Refuse));
        self.push(LOAD, argument(2));
        self.branch(IF_EQUAL, 0, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_TCP as u32, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_UDP as u32, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_ICMP as u32, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_ICMPV6 as u32, ALLOW, To::Answer(Answer::NoProtocol));
    }

    /// A mode counts only where a file may be created: elsewhere the register holds anything. The argument after
    /// the flags is the mode.
    const fn created_mode(&mut self, flags: u32) {
        // `O_TMPFILE` contains `O_DIRECTORY`, with which nothing is created; only its own bit counts.
        let creating = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
        self.push(LOAD, argument(flags));
        self.branch(IF_ANY_BIT, creating, To::Next, To::Answer(Answer::Allow));
        self.refuse_bits(flags + 1, table::SET_ID_BITS);
    }

    /// Installs it for the calling thread, after `no_new_privs`.
    pub(super) fn install(&self) -> io::Result<()> {
        // SAFETY: plain numbers; the call changes one flag of the thread.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let program = libc::sock_fprog {
            len: self.len as u16,
            // The kernel only reads; the type is older than `const`.
            filter: self.code.as_ptr().cast_mut(),
        };
        // SAFETY: `program` points at `len` instructions of a static, which the kernel copies before it returns.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The instructions.
    #[cfg(test)]
    pub(super) fn instructions(&self) -> &[sock_filter] {
        &self.code[..self.len]
    }
}

const fn is(to: To, answer: Answer) -> bool {
    matches!(to, To::Answer(waits_for) if waits_for as u8 == answer as u8)
}

/// Neighbouring numbers with the same answer.
struct Ranges {
    starts: [u32; MOST_RANGES],
    answers: [Answer; MOST_RANGES],
    len: usize,
}

impl Ranges {
    const fn of(table: &[Answer; TABLE]) -> Ranges {
        let mut ranges = Ranges { starts: [0; MOST_RANGES], answers: [Answer::Unknown; MOST_RANGES], len: 0 };
        let mut number = 0;
        while number < TABLE {
            ranges.add(number as u32, table[number]);
            number += 1;
        }
        ranges.add(TABLE as u32, Answer::Unknown);
        ranges.add(FOREIGN_NUMBERS, Answer::Kill);
        ranges
    }

    const fn add(&mut self, start: u32, answer: Answer) {
        if self.len > 0 && self.answers[self.len - 1] as u8 == answer as u8 {
            return;
        }
        assert!(self.len < MOST_RANGES, "too many ranges of system calls");
        self.starts[self.len] = start;
        self.answers[self.len] = answer;
        self.len += 1;
    }
}
