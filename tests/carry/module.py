"""A module that is a carrier."""

from tests.carry.carrying import carry

save = carry.save
restored = carry.restored
