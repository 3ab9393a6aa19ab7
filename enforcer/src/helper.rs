//! Processes of our own that parse what others say: the same program again, without privileges, joined by a socket pair
//! on its standard input.
//!
//! The daemon's side ([`Helper`]) starts such a process with the first question, again with the next one after it ended,
//! and kills one that hangs: either way the questions fail that it had, and nothing else in the daemon notices. The
//! process's side ([`main`]) gives up its rights before it reads anything: it becomes a user of its own without capabilities,
//! changes no file (Landlock), and makes the few system calls that its work needs (`privilege`). What is asked and answered is a [`Protocol`].

mod broker;
mod frame;
mod process;
mod socket;
mod words;

pub use self::broker::HelperError;
#[cfg(test)]
pub(crate) use self::words::{MOST_CHARACTERS, MOST_NAME_BYTES};
pub(crate) use self::{
    broker::{Helper, Protocol, command},
    frame::{Numbered, encode, read, write},
    process::{Kind, main, standard_socket},
    socket::connect,
    words::{MOST_ID_BYTES, is_id, is_name, plain},
};
