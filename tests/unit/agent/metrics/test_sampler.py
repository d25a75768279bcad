"""How often cards are sampled, and how long callers wait for a sample, in virtual time."""

import asyncio
from collections.abc import Mapping

import pytest

from berth_agent.metrics.sampler import MAX_AGE, MIN_INTERVAL, PATIENCE, Sampler
from berth_agent.readings import CardSample

pytestmark = pytest.mark.looptime


class Driver:
    """Counts samples; the next ones take so many seconds."""

    def __init__(self) -> None:
        self.samples = 0
        self.seconds = 0.0

    async def take(self) -> Mapping[str, CardSample]:
        self.samples += 1
        number = self.samples
        await asyncio.sleep(self.seconds)
        return {"GPU-a": CardSample(temperature=number)}


async def temperature(sampler: Sampler) -> int | None:
    card = (await sampler.current()).cards.get("GPU-a")
    return card.temperature if card else None


async def test_cards_are_sampled_once_a_second_however_often_they_are_scraped() -> None:
    driver = Driver()
    sampler = Sampler(driver.take)
    seen: list[int | None] = []
    for _ in range(31):
        seen += await asyncio.gather(temperature(sampler), temperature(sampler))
        await asyncio.sleep(MIN_INTERVAL / 10)
    assert driver.samples == 4
    assert seen == [1] * 20 + [2] * 20 + [3] * 20 + [4] * 2


async def test_cards_are_not_sampled_while_nobody_scrapes() -> None:
    driver = Driver()
    Sampler(driver.take)
    await asyncio.sleep(600)
    assert driver.samples == 0


async def test_a_driver_that_hangs_delays_no_answer_for_long_and_is_not_asked_again() -> None:
    driver = Driver()
    sampler = Sampler(driver.take)
    assert await temperature(sampler) == 1
    driver.seconds = 600.0
    began = asyncio.get_running_loop().time()
    ages = {}
    while (age := asyncio.get_running_loop().time() - began) < 2 * MAX_AGE:
        await asyncio.sleep(5)
        ages[age] = await temperature(sampler)
    assert driver.samples == 2
    assert all(value == (1 if age + 5 + PATIENCE <= MAX_AGE else None) for age, value in ages.items())
    await asyncio.sleep(600)
    driver.seconds = 0.0
    assert await temperature(sampler) == 3


async def test_a_sample_that_took_long_is_as_fresh_as_its_end() -> None:
    driver = Driver()
    driver.seconds = 100.0
    sampler = Sampler(driver.take)
    assert await temperature(sampler) is None
    await asyncio.sleep(driver.seconds - PATIENCE + 0.1)
    assert sampler._last.cards["GPU-a"].temperature == 1
    driver.seconds = 600.0
    assert await temperature(sampler) == 1
