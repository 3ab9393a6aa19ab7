//! What lies between a client and a server in tests: a way on which packets vanish, and an authority that signs
//! certificates which have expired.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustix::net::sockopt;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A way to a server.
#[derive(Debug)]
pub(crate) struct Way {
    address: SocketAddr,
    to: watch::Sender<Option<SocketAddr>>,
    open: Arc<AtomicUsize>,
    half_open: Arc<AtomicUsize>,
}

impl Way {
    /// One to that server. What is returned beside it passes everything on, for ever.
    pub(crate) fn to(server: SocketAddr) -> io::Result<(Self, impl Future<Output = io::Result<()>> + use<>)> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        // As little as the kernel allows: it is all that is acknowledged of what vanishes.
        sockopt::set_socket_recv_buffer_size(&listener, 1)?;
        let address = listener.local_addr()?;
        let (to, present) = watch::channel(Some(server));
        let [open, half_open] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (counted, vanished) = (Arc::clone(&open), Arc::clone(&half_open));
        let serving = async move {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (near, _peer) = listener.accept().await?;
                let (counted, vanished) = (Arc::clone(&counted), Arc::clone(&vanished));
                let passing = pass(near, present.clone(), vanished);
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    // Either end may close it.
                    drop(passing.await);
                    counted.fetch_sub(1, Ordering::SeqCst);
                });
            }
        };
        Ok((Self { address, to, open, half_open }, serving))
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets all packets vanish from now on: connections are accepted and stay, and nothing goes through them again.
    pub(crate) fn vanish(&self) {
        self.to.send_replace(None);
    }

    /// Whether all packets vanish on every connection by now.
    pub(crate) fn has_vanished(&self) -> bool {
        let [open, half_open] = [&self.open, &self.half_open].map(|count| count.load(Ordering::SeqCst));
        open > 0 && open == half_open
    }

    /// Leads to that server from now on. The connections so far are closed; those that are half open stay so.
    pub(crate) fn lead_to(&self, server: SocketAddr) {
        self.to.send_replace(Some(server));
    }
}

async fn pass(
    mut near: TcpStream,
    mut to: watch::Receiver<Option<SocketAddr>>,
    half_open: Arc<AtomicUsize>,
) -> io::Result<()> {
    let server = *to.borrow_and_update();
    near.set_nodelay(true)?;
    if let Some(server) = server {
        let mut far = TcpStream::connect(server).await?;
        far.set_nodelay(true)?;
        let led_elsewhere = tokio::select! {
            biased;
            changed = to.changed() => changed.map(|()| *to.borrow()).unwrap_or_default(),
            passed = tokio::io::copy_bidirectional(&mut near, &mut far) => return passed.map(drop),
        };
        if led_elsewhere.is_some() {
            return Ok(());
        }
        return held((near, far), &half_open).await;
    }
    held(near, &half_open).await
}

/// Keeps a connection open, and neither reads nor writes.
async fn held<T>(connection: T, half_open: &AtomicUsize) -> io::Result<()> {
    half_open.fetch_add(1, Ordering::SeqCst);
    std::future::pending::<()>().await;
    drop(connection);
    Ok(())
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Validity {
    /// Now.
    Valid,
    /// It was, until a year that is over.
    Expired,
}

/// Who signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Result<Self, rcgen::Error> {
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)?))
    }

    /// Its own certificate, in PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for that name and its key, in PEM.
    pub(crate) fn sign(&self, name: &str, validity: Validity) -> Result<(String, String), rcgen::Error> {
        let mut parameters = CertificateParams::new([name.to_owned()])?;
        parameters.not_before = date_time_ymd(2_000, 1, 1);
        parameters.not_after = match validity {
            Validity::Valid => date_time_ymd(4_000, 1, 1),
            Validity::Expired => date_time_ymd(2_001, 1, 1),
        };
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.0)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}
