//! Reservations for others than pods: made, released, expired, and reported.

use enforcer_events::{
    Payload,
    reservation::{Releaser, ReservationEnded, ReservationMade},
};

use super::OrderBook;
use crate::{
    daemon::desired::Desired,
    journal::{Journal, Subject},
    policy::reservation::{self, Reservation, Wish, check_name},
    serve::{Done, No, Peer, Requested, ReservationRequest, ReservationView, now, rfc3339},
};

/// The answer to who reserves beside a kubelet: its admission knows of no reservation here.
const BESIDE_KUBELET: &str = "a kubelet admits the pods of this node, and does not know what is reserved here: set its systemReserved instead";

/// The answer while it is not known what pods request.
const UNREAD: &str = "the manifests in staticPodPath have not been read yet, so what is free is not known: try again once they can be \
                      read (`enforcer events --type source.down` shows why they cannot)";

impl OrderBook {
    /// Makes a reservation, if that much is free.
    pub(super) fn reserve(
        &mut self,
        request: ReservationRequest,
        peer: Peer,
        desired: &Desired,
    ) -> Result<Done, No> {
        if self.is_beside_kubelet {
            return Err(No::Refused(String::from(BESIDE_KUBELET)));
        }
        if !desired.knows_manifests() {
            return Err(No::Busy(String::from(UNREAD)));
        }
        let ReservationRequest { name, resources, reason, ttl_ms } = request;
        let resources = reservation::amounts(&resources)?;
        let replaced = self.reservations.find(&name).is_some();
        let wish = Wish { name, resources, reason, for_ms: ttl_ms };
        let now = now();
        let made = self.reservations.make(wish, peer.uid, now, desired.allocation())?;
        self.reserved_changed();
        let message =
            format!("{} reserved for {} until {}", amounts(&made), made.name, rfc3339(made.until_ms));
        emit_made(&self.journal, &made, peer, replaced, message.clone());
        let reservation = Some(ReservationView::new(&made, now));
        Ok(Done { message, reservation, ..Done::default() })
    }

    /// Ends a reservation before its time.
    pub(super) fn release(&mut self, name: &str, peer: Peer) -> Result<Done, No> {
        check_name(name)?;
        let Some(released) = self.reservations.release(name) else {
            return Err(No::Unknown(format!(
                "there is no reservation {name}: `enforcer allocatable` shows the reservations in force"
            )));
        };
        self.reserved_changed();
        emit_ended(&self.journal, &released, Some(peer));
        let message = format!("{} no longer reserved for {name}", amounts(&released));
        let reservation = Some(ReservationView::new(&released, now()));
        Ok(Done { message, reservation, ..Done::default() })
    }

    /// Ends reservations whose time is up.
    pub(super) fn expire_reservations(&mut self) {
        for over in self.reservations.expire(now()) {
            emit_ended(&self.journal, &over, None);
            self.reserved_changed();
        }
    }

    /// Puts the reservations in force: pods are admitted beside them.
    pub(in crate::daemon) fn put_reservations_in_force(&self, desired: &mut Desired) {
        desired.set_reserved(self.reservations.total());
    }

    /// What pods and reservations request now.
    pub(in crate::daemon) fn requested(&self, desired: &Desired) -> Requested {
        let (node, settings, pods) = desired.allocation();
        Requested {
            node: node.clone(),
            settings: settings.clone(),
            pods: pods.clone(),
            reservations: self.reservations.all().to_vec(),
        }
    }

    fn reserved_changed(&mut self) {
        self.is_unkept = true;
    }
}

/// `1 cpu and 2Gi memory`.
fn amounts(reservation: &Reservation) -> String {
    let texts = reservation::texts(&reservation.resources);
    let texts: Vec<_> = texts.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
    texts.join(" and ")
}

fn emit_made(journal: &Journal, made: &Reservation, peer: Peer, replaced: bool, message: String) {
    tracing::info!("{message}");
    let payload = Payload::ReservationMade(ReservationMade {
        name: made.name.clone(),
        resources: reservation::texts(&made.resources),
        reason: made.reason.clone(),
        uid: peer.uid,
        pid: peer.pid,
        given: rfc3339(made.given_ms),
        until: rfc3339(made.until_ms),
        left_ms: made.until_ms.saturating_sub(made.given_ms),
        replaced,
        message,
    });
    journal.emit(Subject::Node, payload);
}

/// Reports an end; without a peer it is that of its time.
pub(super) fn emit_ended(journal: &Journal, ended: &Reservation, peer: Option<Peer>) {
    let (what, name) = (amounts(ended), &ended.name);
    let (reason, message) = match peer {
        Some(peer) => {
            ("released", format!("{what} released by uid {}: no longer reserved for {name}", peer.uid))
        }
        None => ("expired", format!("{what} no longer reserved for {name}: the time is up")),
    };
    tracing::info!("{message}");
    let payload = Payload::ReservationEnded(ReservationEnded {
        name: name.clone(),
        resources: reservation::texts(&ended.resources),
        reason: reason.into(),
        uid: ended.uid,
        given: rfc3339(ended.given_ms),
        until: rfc3339(ended.until_ms),
        ended_by: peer.map(|peer| Releaser { uid: peer.uid, pid: peer.pid }),
        message,
    });
    journal.emit(Subject::Node, payload);
}
