// Headers that most tests include, precompiled.
#pragma once

#include <cuflash/flash_attention.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>
