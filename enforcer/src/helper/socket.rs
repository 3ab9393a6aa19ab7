//! Connections that take root, and that a helper process then has.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with,
};

/// Connects without waiting: a server that hangs accepts no more, and then the kernel refuses.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let connected = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect_to(&socket, &SocketAddrUnix::new(path)?)?;
        Ok::<_, rustix::io::Errno>(socket)
    };
    connected().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot connect to {}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::net::UnixListener};

    use super::*;

    #[test]
    fn what_does_not_listen_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let refused = connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
        fs::remove_file(&path).unwrap();
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let long = root.path().join("x".repeat(200));
        assert!(connect(&long).is_err());
    }
}
