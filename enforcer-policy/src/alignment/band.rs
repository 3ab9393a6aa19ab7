//! What alignment gives each pod: a range, so that a score within it needs no write.

use super::Contender;

/// The range of the scores of a pod's containers: a score within it stays, any other is moved to the nearest bound.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Band {
    least: i16,
    most: i16,
}

impl Band {
    /// From `least` to `most`; `None` if that is empty, or out of the range of scores.
    pub(super) fn new(least: i128, most: i128) -> Option<Self> {
        let (least, most) = (i16::try_from(least).ok()?, i16::try_from(most).ok()?);
        (least <= most).then_some(Self { least, most })
    }

    /// The lowest score in the band.
    #[must_use]
    pub fn least(self) -> i16 {
        self.least
    }

    /// The highest.
    #[must_use]
    pub fn most(self) -> i16 {
        self.most
    }

    /// The score that a container gets instead of this one.
    #[must_use]
    pub fn hold(self, score: i16) -> i16 {
        score.clamp(self.least, self.most)
    }

    /// Whether the band changes the score of any of its containers.
    pub(super) fn moves(self, contender: &Contender) -> bool {
        self.hold(contender.lowest) != contender.lowest || self.hold(contender.highest) != contender.highest
    }
}
