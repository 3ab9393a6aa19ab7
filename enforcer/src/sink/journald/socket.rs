//! Sends datagrams to journald, and survives its restart.

use std::{
    fs::File,
    io::{self, IoSlice, Write as _},
    mem::MaybeUninit,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    io::Errno,
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType, sendmsg_addr, socket_with,
    },
};

/// The socket for sending to journald. The path is resolved for every entry, so that a restarted journald is found.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    address: SocketAddrUnix,
    path: PathBuf,
}

impl Socket {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(Self { fd, address: SocketAddrUnix::new(path)?, path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Sends an entry. Never waits: `WouldBlock` if journald does not keep up.
    pub(super) fn send(&self, entry: &[u8]) -> io::Result<()> {
        let sent = self.sendmsg(&[IoSlice::new(entry)], &mut SendAncillaryBuffer::default());
        match sent {
            // Too large for a datagram: journald accepts it as a sealed memfd.
            Err(Errno::MSGSIZE | Errno::NOBUFS) => self.send_file(entry),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn send_file(&self, entry: &[u8]) -> io::Result<()> {
        let file = memfd_create("enforcer-event", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(file);
        file.write_all(entry)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::other("no room for a descriptor"));
        }
        Ok(self.sendmsg(&[], &mut control).map(drop)?)
    }

    fn sendmsg(
        &self,
        parts: &[IoSlice<'_>],
        control: &mut SendAncillaryBuffer<'_, '_, '_>,
    ) -> Result<usize, Errno> {
        sendmsg_addr(&self.fd, &self.address, parts, control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }
}
